// One call of SparseAttention after its inputs were checked: sizes, attributes, pointers and how they broadcast.
#pragma once
#include <stdint.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "element.h"

namespace sparsify {

// A wrong input, attribute or setting; the text is a whole sentence for the user.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Residual : int64_t { none = 0, mean = 1, iso = 2 };

struct Attributes {
  int64_t q_block = 64, k_block = 64;
  float scale = 0, softcap = 0;
  bool causal = false;
  int64_t left = -1, right = -1;
  Residual residual = Residual::none;
  int64_t residual_block = 0;
};

// How many elements so many dimensions have. Where one is 0, the others may be of any size: their product then wraps
// around, which is of no consequence, instead of overflowing.
template <class... Dimensions>
int64_t product(Dimensions... n) {
  return static_cast<int64_t>((uint64_t{1} * ... * static_cast<uint64_t>(n)));
}

struct Sizes {
  int64_t batch, q_heads, kv_heads, q_len, k_len, qk_dim, v_dim;
};

// A tensor broadcast to up to four dimensions: a stride of 0 repeats.
template <class T>
struct View {
  const T* data = nullptr;
  int64_t stride[4] = {0, 0, 0, 0};
  const T* at(int64_t a, int64_t b) const { return data + a * stride[0] + b * stride[1]; }
  const T* at(int64_t a, int64_t b, int64_t c) const { return at(a, b) + c * stride[2]; }
  explicit operator bool() const { return data != nullptr; }
};

struct Problem {
  Attributes attributes;
  Sizes sizes;
  Element element;                // of q, k, v, y, bias and sinks
  const void *q, *k, *v;
  void* y;
  View<int32_t> indices, counts;  // null: every block is kept
  int64_t listed = 0;             // the last dimension of indices
  View<uint8_t> mask;             // null where the neutral value was given
  View<void> bias;
  View<int64_t> lengths, offsets;  // per batch
  View<void> sinks;                // per query head

  int64_t group() const { return sizes.q_heads / sizes.kv_heads; }
  int64_t key_length(int64_t batch) const {
    const int64_t n = lengths ? lengths.data[batch * lengths.stride[0]] : sizes.k_len;
    return n < 0 ? 0 : n > sizes.k_len ? sizes.k_len : n;
  }
  int64_t query_offset(int64_t batch) const { return offsets ? offsets.data[batch * offsets.stride[0]] : 0; }
  float sink(int64_t head) const {
    if (!sinks) return -std::numeric_limits<float>::infinity();
    return float_at(element, sinks.data, head * sinks.stride[0]);
  }
  const void* bias_at(int64_t batch, int64_t head, int64_t row) const {
    return element_at(element, bias.data, batch * bias.stride[0] + head * bias.stride[1] + row * bias.stride[2]);
  }
  int64_t row_block() const { return attributes.q_block; }
  int64_t q_blocks() const { return (sizes.q_len + row_block() - 1) / row_block(); }
  int64_t k_blocks() const { return (sizes.k_len + attributes.k_block - 1) / attributes.k_block; }
  int64_t residual_group() const {
    return attributes.k_block > 1 ? attributes.k_block : attributes.residual_block;
  }
  bool limited() const {
    return attributes.causal || attributes.left >= 0 || attributes.right >= 0;
  }
  // Masks that are equal for all rows shorten key lists; the others are looked at per element.
  bool row_mask() const { return mask && mask.stride[2] != 0; }
  bool row_bias() const { return bias && bias.stride[2] != 0; }
};

}  // namespace sparsify
