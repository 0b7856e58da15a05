// Vectors of elements of any type in, floats out, and back. Half precision is converted where it is read, so that no
// tensor is ever held twice.

typedef uint16_t vh __attribute__((vector_size(2 * kWidth)));
typedef uint32_t vu __attribute__((vector_size(4 * kWidth)));

INLINE vf widen_bfloat(vh x) { return (vf)(__builtin_convertvector(x, vu) << 16); }

#if defined(__AVX512F__)
INLINE vf widen_half(vh x) { return (vf)_mm512_maskz_cvtph_ps(kAll, (__m256i)x); }
#elif defined(__F16C__)
INLINE vf widen_half(vh x) { return (vf)_mm256_cvtph_ps((__m128i)x); }
#else
// As float_from_half does it.
INLINE vf widen_half(vh x) {
  const vu wide = __builtin_convertvector(x, vu);
  const vu sign = (wide & 0x8000) << 16, magnitude = (wide & 0x7fff) << 13;
  const vu scaled = (vu)((vf)magnitude * 0x1p112f);
  return (vf)(sign | ((wide & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : scaled));
}
#endif

INLINE vf widen(Element element, vh x) { return element == Element::f16 ? widen_half(x) : widen_bfloat(x); }

INLINE vh load_bits(const uint16_t* from) {
  vh x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

// Elements [at, at + count) of a tensor, zeros behind them; nothing past the end is read.
INLINE vf load_elements(Element element, const void* data, int64_t at, int64_t count) {
  if (element == Element::f32) return load_some(static_cast<const float*>(data) + at, count);
  const uint16_t* from = static_cast<const uint16_t*>(data) + at;
  if (count >= kWidth) return widen(element, load_bits(from));
  vh x = vh{};
  for (int64_t i = 0; i < count; ++i) x[i] = from[i];
  return widen(element, x);
}

static void from_float(Element element, const float* from, void* to, int64_t count) {
  uint16_t* out = static_cast<uint16_t*>(to);
  if (element == Element::f32) {
    __builtin_memcpy(to, from, (size_t)count * 4);
  } else if (element == Element::f16) {
    for (int64_t i = 0; i < count; ++i) out[i] = half_from_float(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = bfloat_from_float(from[i]);
  }
}

INLINE void store_elements(Element element, void* data, int64_t at, vf x, int64_t count) {
  if (element == Element::f32) return store_some(static_cast<float*>(data) + at, x, count);
  alignas(64) float t[kWidth];
  store(t, x);
  from_float(element, t, static_cast<uint16_t*>(data) + at, count < kWidth ? count : kWidth);
}

// A row of `dim` elements as floats; `to` has room for whole vectors, which end in zeros.
INLINE void widen_row(Element element, const void* row, int64_t dim, float* to) {
  const uint16_t* bits = static_cast<const uint16_t*>(row);
  int64_t d = 0;
  if (element == Element::f16) {
    for (; d + kWidth <= dim; d += kWidth) store(to + d, widen_half(load_bits(bits + d)));
  } else if (element == Element::bf16) {
    for (; d + kWidth <= dim; d += kWidth) store(to + d, widen_bfloat(load_bits(bits + d)));
  }
  for (; d < dim; d += kWidth) store(to + d, load_elements(element, row, d, dim - d));
}
