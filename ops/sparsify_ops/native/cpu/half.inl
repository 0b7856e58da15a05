// Half precision in and out, written as integer loops that the compiler vectorises on every instruction set.

INLINE float float_from_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

static void bfloat_to_float(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = float_from_bits((uint32_t)from[i] << 16);
}

// Round to nearest even; a NaN stays one even if its payload is cut off.
static void float_to_bfloat(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(from[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
  }
}

// Shifts exponent and mantissa into place and lets one multiplication by 2^112 fix the bias, subnormals included.
static void half_to_float(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t h = from[i], sign = (h & 0x8000) << 16, magnitude = (h & 0x7fff) << 13;
    const float scaled = float_from_bits(magnitude) * 0x1p112f;
    const uint32_t special = magnitude | 0x7f800000;
    to[i] = float_from_bits(sign | ((h & 0x7c00) == 0x7c00 ? special : bits_of(scaled)));
  }
}

// Normal results round in the integer domain; adding 0.5 lines small ones up with the subnormal grid.
static void float_to_half(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(from[i]), sign = (bits >> 16) & 0x8000, x = bits & 0x7fffffff;
    const uint32_t normal = (x + 0xfff + ((x >> 13) & 1) - (112u << 23)) >> 13;
    const uint32_t small = bits_of(float_from_bits(x) + 0.5f) - bits_of(0.5f);
    const uint32_t finite = x < (113u << 23) ? small : normal;
    const uint32_t large = x > 0x7f800000 ? 0x7e00 : 0x7c00;
    to[i] = (uint16_t)(sign | (x >= 0x477ff000 ? large : finite));
  }
}
