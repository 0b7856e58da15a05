// The element types of Q, K, V and their biases, and how one element turns into a float and back.
// Everything here has internal linkage: the files compiled for other instruction sets must not share a copy.
#pragma once
#include <stdint.h>

namespace sparsify {

enum class Element : uint8_t { f32, f16, bf16 };

static inline int64_t bytes_of(Element element) { return element == Element::f32 ? 4 : 2; }

static inline float float_from_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
static inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

static inline float float_from_bfloat(uint16_t x) { return float_from_bits((uint32_t)x << 16); }

// Shifts exponent and mantissa into place and lets one multiplication by 2^112 fix the bias, subnormals included.
static inline float float_from_half(uint16_t x) {
  const uint32_t sign = (x & 0x8000u) << 16, magnitude = (x & 0x7fffu) << 13;
  const uint32_t special = magnitude | 0x7f800000;
  const float scaled = float_from_bits(magnitude) * 0x1p112f;
  return float_from_bits(sign | ((x & 0x7c00) == 0x7c00 ? special : bits_of(scaled)));
}

// Round to nearest even; a NaN stays one even if its payload is cut off.
static inline uint16_t bfloat_from_float(float x) {
  const uint32_t bits = bits_of(x), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

// Normal results round in the integer domain; adding 0.5 lines small ones up with the subnormal grid.
static inline uint16_t half_from_float(float value) {
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000, x = bits & 0x7fffffff;
  const uint32_t normal = (x + 0xfff + ((x >> 13) & 1) - (112u << 23)) >> 13;
  const uint32_t small = bits_of(float_from_bits(x) + 0.5f) - bits_of(0.5f);
  const uint32_t finite = x < (113u << 23) ? small : normal;
  const uint32_t large = x > 0x7f800000 ? 0x7e00 : 0x7c00;
  return (uint16_t)(sign | (x >= 0x477ff000 ? large : finite));
}

// Natural logits beyond it are taken for it: in log2 units they were not finite, and a mask of -FLT_MAX must not turn
// into -inf.
constexpr float kBound = 0x1.62e42ep+127f;

// Element `at` of a tensor.
static inline float float_at(Element element, const void* data, int64_t at) {
  if (element == Element::f32) return static_cast<const float*>(data)[at];
  const uint16_t x = static_cast<const uint16_t*>(data)[at];
  return element == Element::f16 ? float_from_half(x) : float_from_bfloat(x);
}

// Where element `at` of a tensor lies.
static inline const void* element_at(Element element, const void* data, int64_t at) {
  return static_cast<const char*>(data) + at * bytes_of(element);
}

}  // namespace sparsify
