// Chooses the instruction set: the best the machine has, or the one that SPARSIFY_CPU names, for tests.
#include "dispatch.h"

#include <stdlib.h>

#include <string>

#include "problem.h"

namespace sparsify {

namespace {

struct Level {
  const Isa* isa;
  bool (*supported)();
};

// Best first. __builtin_cpu_supports also asks whether the operating system saves the registers.
#if defined(__x86_64__) || defined(_M_X64)
const Level kLevels[] = {
    {&kIsaAvx512,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
     }},
    {&kIsaAvx2, [] {
       return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
              __builtin_cpu_supports("bmi");
     }},
    {&kIsaV2, [] { return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt"); }},
};
#else
const Level kLevels[] = {{&kIsaPortable, [] { return true; }}};
#endif

std::string names() {
  std::string all;
  for (const Level& level : kLevels) all += (all.empty() ? "" : ", ") + std::string(level.isa->name);
  return all;
}

const Isa& choose(const char* wanted) {
  for (const Level& level : kLevels) {
    if (wanted ? level.isa->name != std::string(wanted) : !level.supported()) continue;
    if (level.supported()) return *level.isa;
    throw Failure("SPARSIFY_CPU asks for " + std::string(wanted) + ", which this processor does not have; unset it.");
  }
  if (wanted) {
    throw Failure("SPARSIFY_CPU is \"" + std::string(wanted) + "\", but must be one of " + names() + "; unset it.");
  }
  throw Failure("The kernels of ai.sparsify need at least x86-64-v2 (SSE4.2), which this processor does not have.");
}

// On AMD's cores (Zen 4, Zen 5) VDPBF16PS does twice the work of an FMA in its time. On Intel's it has half of the
// FMA's rate (measured: 54 against 114 GFLOP/s of a core), and the kernel took 1.5 to 2 times that of float32.
const Isa& in_bfloat16(const Isa& isa) {
#if defined(__x86_64__) || defined(_M_X64)
  const bool fast = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd");
  if (&isa == &kIsaAvx512 && fast) return kIsaAvx512Bf16;
#endif
  return isa;
}

}  // namespace

const Isa& chosen_isa(bool bfloat16) {
  const char* wanted = getenv("SPARSIFY_CPU");
  const Isa& isa = choose(wanted && *wanted ? wanted : nullptr);
  return bfloat16 ? in_bfloat16(isa) : isa;
}

}  // namespace sparsify
