// Vectors of kWidth floats, and the four things about them that differ between instruction sets.
// Included, inside an anonymous namespace, by one file per instruction set: nothing here may be shared between them, or
// the linker could keep an AVX-512 copy for a machine without it. That is also why no std:: template appears here.

typedef float vf __attribute__((vector_size(4 * kWidth)));
typedef int32_t vi __attribute__((vector_size(4 * kWidth)));
typedef uint8_t vb __attribute__((vector_size(kWidth)));
typedef float vfu __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

constexpr float kInf = __builtin_inff();
constexpr float kLog2e = 1.44269504088896341f;

INLINE vf load(const float* p) { return *reinterpret_cast<const vfu*>(p); }
INLINE void store(float* p, vf x) { *reinterpret_cast<vfu*>(p) = x; }
INLINE vf splat(float x) { return vf{} + x; }
INLINE vf choose(vi mask, vf yes, vf no) { return mask ? yes : no; }

// larger(a, b) and smaller(a, b) return b when either is NaN: callers rely on it, so a NaN score is never lost.
#if defined(__AVX512F__)
constexpr __mmask16 kAll = 0xffff;  // GCC 12 warns of its own undefined_ps() in the unmasked forms
INLINE vf larger(vf a, vf b) { return (vf)_mm512_maskz_max_ps(kAll, (__m512)a, (__m512)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm512_maskz_min_ps(kAll, (__m512)a, (__m512)b); }
#elif defined(__AVX__)
INLINE vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#elif defined(__SSE2__)
INLINE vf larger(vf a, vf b) { return (vf)_mm_max_ps((__m128)a, (__m128)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm_min_ps((__m128)a, (__m128)b); }
#else
INLINE vf larger(vf a, vf b) { return a > b ? a : b; }
INLINE vf smaller(vf a, vf b) { return a < b ? a : b; }
#endif

// 2^x for x in [-inf, 127]: exactly 1 at 0, exactly 0 at -inf, NaN for NaN, within 2 ulp between.
#if defined(__AVX512DQ__)
// x minus its floor, 0 for -inf, goes through the polynomial; the other instruction takes the floor by itself.
INLINE vf exp2v(vf x) {
  const vf f = (vf)_mm512_maskz_reduce_ps(kAll, (__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  vf p = splat(0x1.e974fap-10f) * f + 0x1.277856p-7f;
  p = p * f + 0x1.c91ce6p-5f;
  p = p * f + 0x1.ebdb56p-3f;
  p = p * f + 0x1.62e4bap-1f;
  p = p * f + 1.0f;
  return (vf)_mm512_maskz_scalef_ps(kAll, (__m512)p, (__m512)x);
}
#else
// Adding a number near 1.5 * 2^23 rounds x to an integer in the low bits; the extra 127 makes them the exponent field.
// From -127 down the result is 0.
INLINE vf exp2v(vf x) {
  x = larger(splat(-127.0f), x);
  const vf magic = splat(12582912.0f + 127.0f);
  const vf shifted = x + magic;
  const vf f = x - (shifted - magic);
  vf p = splat(0x1.5bba14p-10f) * f + 0x1.3cea88p-7f;
  p = p * f + 0x1.c6b752p-5f;
  p = p * f + 0x1.ebf9bcp-3f;
  p = p * f + 0x1.62e42ap-1f;
  p = p * f + 1.0f;
  return p * (vf)((vi)shifted << 23);
}
#endif

INLINE float sum_of(vf x) {
  float sum = 0.0f;
  for (int i = 0; i < kWidth; ++i) sum += x[i];
  return sum;
}

#if SPARSIFY_WIDTH == 16
INLINE vf low_half(vf a, vf b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
INLINE vf high_half(vf a, vf b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif SPARSIFY_WIDTH == 8
INLINE vf low_half(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
INLINE vf high_half(vf a, vf b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
INLINE vf low_half(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
INLINE vf high_half(vf a, vf b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

// Transposes in place: each stage interleaves the two halves of the set, which rotates the index bits by one.
INLINE void transpose(vf (&r)[kWidth]) {
#pragma GCC unroll 4
  for (int stage = 1; stage < kWidth; stage *= 2) {
    vf t[kWidth];
#pragma GCC unroll 8
    for (int i = 0; i < kWidth / 2; ++i) {
      t[2 * i] = low_half(r[i], r[i + kWidth / 2]);
      t[2 * i + 1] = high_half(r[i], r[i + kWidth / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) r[i] = t[i];
  }
}

// The first `count` floats at p, zeros behind them; nothing past the end is read.
INLINE vf load_some(const float* p, int64_t count) {
  if (count >= kWidth) return load(p);
  alignas(64) float t[kWidth] = {};
  for (int64_t i = 0; i < count; ++i) t[i] = p[i];
  return load(t);
}

INLINE void store_some(float* p, vf x, int64_t count) {
  if (count >= kWidth) return store(p, x);
  alignas(64) float t[kWidth];
  store(t, x);
  for (int64_t i = 0; i < count; ++i) p[i] = t[i];
}
