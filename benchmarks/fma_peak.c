// Measures how many multiply-adds one core can do, of float32 or where the flags allow it of bfloat16: independent
// chains of them and nothing else.
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <time.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
enum { WIDTH = 16 };
#else
enum { WIDTH = 8 };
#endif
enum { CHAINS = 16 };

typedef float Vector __attribute__((vector_size(4 * WIDTH)));

// Known to the outside, so that the work on them cannot move past the clock.
Vector fma_chains[CHAINS];

static double thread_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

// An instruction does two multiply-adds per lane when it takes pairs of bfloat16.
#ifdef __AVX512BF16__
enum { TOGETHER = 2 };
#define NEXT(x) ((Vector)_mm512_dpbf16_ps((__m512)(x), (__m512bh)(x), (__m512bh)(x)))
#else
enum { TOGETHER = 1 };
#define NEXT(x) ((x) * (x) + (x))
#endif

// x * x + x of an x between -1 and 0 stays there: one register per chain is all there is to hold,
// so that 16 chains fit into the 16 registers of AVX2.
__attribute__((noinline)) static void run(int64_t rounds) {
  Vector chain[CHAINS];
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; i++) chain[i] = fma_chains[i];
  for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) chain[i] = NEXT(chain[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; i++) fma_chains[i] = chain[i];
}

// Floating-point operations per second of thread time. Every lane starts at another number: equal chains
// could be merged.
double fma_peak(int64_t rounds) {
  for (int i = 0; i < CHAINS; i++)
    for (int lane = 0; lane < WIDTH; lane++)
      fma_chains[i][lane] = -0.1f - 0.8f * (i * WIDTH + lane) / (CHAINS * WIDTH);
  const double start = thread_seconds();
  run(rounds);
  return 2.0 * TOGETHER * rounds * CHAINS * WIDTH / (thread_seconds() - start);
}
