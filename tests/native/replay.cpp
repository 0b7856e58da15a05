// What libFuzzer does, without it: `PROGRAM N [FIRST]` runs a fuzz target on N inputs from fixed seeds.
#include <stdio.h>
#include <stdlib.h>

#include "bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int count, char** arguments) {
  const int runs = count > 1 ? atoi(arguments[1]) : 0, first = count > 2 ? atoi(arguments[2]) : 1;
  for (int run = 0; run < runs; ++run) {
    std::minstd_rand random(static_cast<unsigned>(first + run));
    uint8_t data[600];
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random() >> 8);
    LLVMFuzzerTestOneInput(data, sizeof data);
  }
  printf("%d of %d accepted\n", accepted, runs);
}
