// Measures how fast memory can be read: a sum of a large array and nothing else.
#include <stdint.h>

// So many sums at once that no read waits for an addition, and so few that all stay in registers.
enum { SUMS = 8 };

typedef uint64_t Words __attribute__((vector_size(16), aligned(8)));

// The sum of the words; those behind the last full round of SUMS are left out.
uint64_t read_memory(const uint64_t* words, int64_t count) {
  const Words* next = (const Words*)words;
  const Words* end = next + count / (2 * SUMS) * SUMS;
  Words sums[SUMS] = {{0}};
  for (; next < end; next += SUMS) {
#pragma GCC unroll 8
    for (int i = 0; i < SUMS; i++) sums[i] += next[i];
  }
  for (int i = 1; i < SUMS; i++) sums[0] += sums[i];
  return sums[0][0] + sums[0][1];
}
