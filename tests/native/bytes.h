// Turns a fuzzer's bytes into numbers and arrays.
#pragma once
#include <stdint.h>

#include <memory>
#include <random>
#include <vector>

#include "element.h"

inline int accepted = 0;  // calls that computed something, counted by the targets for whoever replays inputs

// Numbers made of the input's bytes; zeros once they are used up.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint64_t next(int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; ++i) x = x << 8 | (at_ < size_ ? data_[at_++] : 0);
    return x;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next(2)) % n; }
  bool coin() { return next(1) & 1; }
  bool once_in(uint64_t n) { return next(1) % n == 1 % n; }  // never once the bytes are used up
  std::minstd_rand random() { return std::minstd_rand(static_cast<unsigned>(next(2) + 1)); }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

// Arrays of exactly the right size on the heap, where a sanitizer sees every step past an end.
class Arrays {
 public:
  template <class T>
  T* make(int64_t count) {
    blocks_.emplace_back(new char[static_cast<size_t>(count) * sizeof(T)]);
    return reinterpret_cast<T*>(blocks_.back().get());
  }

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
};

constexpr float kOdd[] = {0.0f, -0.0f, 1e30f, -3.4028234e38f, __builtin_inff(), -__builtin_inff(), __builtin_nanf("")};

// Unit-sized numbers; now and then one that is none.
inline void* floats(Bytes& in, Arrays& arrays, sparsify::Element element, int64_t count, bool odd) {
  std::minstd_rand random = in.random();
  float* wide = arrays.make<float>(count);
  for (int64_t i = 0; i < count; ++i) {
    wide[i] = static_cast<float>(random() % 4001) / 1000.0f - 2.0f;
    if (odd && random() % 16 == 0) wide[i] = kOdd[random() % 7];
  }
  if (element == sparsify::Element::f32) return wide;
  uint16_t* half = arrays.make<uint16_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    const bool ieee = element == sparsify::Element::f16;
    half[i] = ieee ? sparsify::half_from_float(wide[i]) : sparsify::bfloat_from_float(wide[i]);
  }
  return half;
}
