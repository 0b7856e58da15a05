// Runs the attention kernel on arbitrary problems, without ONNX Runtime, so that sanitizers and fuzzers see all of it:
// bytes become a problem, which is computed by one thread and by three, and both results must be the same bits.
// A libFuzzer target; linked with replay.cpp, a program that runs a number of inputs from fixed seeds.
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <thread>
#include <vector>

#include "attention.h"
#include "bytes.h"

using sparsify::Element;
using sparsify::Loop;
using sparsify::Problem;
using sparsify::Residual;
using sparsify::Sizes;
using sparsify::View;

namespace {

// A shape that broadcasts to `to`, and its strides.
template <class T>
int64_t broadcast(Bytes& in, const int64_t (&to)[4], View<T>& view) {
  int64_t step = 1;
  for (int i = 3; i >= 0; --i) {
    const int64_t n = in.coin() ? to[i] : 1;
    view.stride[i] = n == 1 ? 0 : step;
    step *= n;
  }
  return step;
}

void choose_selection(Bytes& in, Arrays& arrays, Problem& p) {
  const int64_t blocks = p.q_blocks(), heads = in.coin() ? p.sizes.q_heads : 1;
  p.listed = in.below(p.k_blocks() + 2);
  const int64_t rows = heads * blocks;
  int32_t* counts = arrays.make<int32_t>(rows);
  int32_t* indices = arrays.make<int32_t>(rows * p.listed);
  const bool wild = in.next(1) % 4 == 0;
  for (int64_t row = 0; row < rows; ++row) {
    int32_t id = -1, kept = 0;
    for (int64_t i = 0; i < p.listed; ++i) {
      id += static_cast<int32_t>(1 + in.below(3));
      indices[row * p.listed + i] = wild ? static_cast<int32_t>(in.next(4)) : id < p.k_blocks() ? id : -1;
      kept += id < p.k_blocks();
    }
    counts[row] = wild ? static_cast<int32_t>(in.next(4)) : in.next(1) % 8 == 0 ? -1 : kept;
  }
  p.counts.data = counts, p.indices.data = indices;
  p.counts.stride[1] = heads == 1 ? 0 : blocks, p.counts.stride[2] = blocks == 1 ? 0 : 1;
  p.indices.stride[1] = heads == 1 ? 0 : blocks * p.listed, p.indices.stride[2] = blocks == 1 ? 0 : p.listed;
  p.indices.stride[3] = 1;
}

void choose_masks(Bytes& in, Arrays& arrays, Problem& p) {
  const int64_t to[4] = {p.sizes.batch, p.sizes.q_heads, p.sizes.q_len, p.sizes.k_len};
  if (in.coin()) {
    const int64_t count = broadcast(in, to, p.mask);
    uint8_t* mask = arrays.make<uint8_t>(count);
    for (int64_t i = 0; i < count; ++i) mask[i] = (i * 7 + in.next(1)) % 5 != 0;
    p.mask.data = mask;
  }
  if (in.coin()) p.bias.data = floats(in, arrays, p.element, broadcast(in, to, p.bias), in.coin());
  if (in.coin()) {
    int64_t* lengths = arrays.make<int64_t>(1);
    *lengths = in.coin() ? in.below(p.sizes.k_len + 2) : static_cast<int64_t>(in.next(8));
    p.lengths.data = lengths;
  }
  if (in.coin()) {
    int64_t* offsets = arrays.make<int64_t>(1);
    *offsets = in.coin() ? in.below(200) - 100 : static_cast<int64_t>(in.next(8));
    p.offsets.data = offsets;
  }
  if (in.coin()) p.sinks.data = floats(in, arrays, p.element, 1, true);
}

Problem choose(Bytes& in, Arrays& arrays) {
  Problem p{};
  p.element = static_cast<Element>(in.next(1) % 3);
  const int64_t kv_heads = 1 + in.below(2), group = 1 + in.below(4);
  const bool few = in.next(1) % 4 == 0;
  p.sizes = {1 + in.below(2), kv_heads * group, kv_heads, 1 + in.below(few ? 6 : 150), 1 + in.below(few ? 2500 : 200),
             in.below(40), 1 + in.below(40)};
  auto& a = p.attributes;
  a.q_block = 1 + in.below(140), a.k_block = in.coin() ? 1 : 1 + in.below(40);
  a.scale = 0.25f, a.softcap = in.next(1) % 4 == 0 ? 3.0f : 0.0f;
  a.causal = in.coin();
  a.left = in.coin() ? in.below(50) : -1, a.right = in.coin() ? in.below(50) : -1;
  const Sizes s = p.sizes;
  const bool odd = in.next(1) % 4 == 0;
  p.q = floats(in, arrays, p.element, s.batch * s.q_heads * s.q_len * s.qk_dim, odd);
  p.k = floats(in, arrays, p.element, s.batch * s.kv_heads * s.k_len * s.qk_dim, odd);
  p.v = floats(in, arrays, p.element, s.batch * s.kv_heads * s.k_len * s.v_dim, odd);
  if (in.coin()) {
    choose_selection(in, arrays, p);
    a.residual = static_cast<Residual>(in.next(1) % (a.softcap > 0 ? 2 : 3));
    a.residual_block = a.k_block > 1 ? 0 : 1 + in.below(20);
  }
  choose_masks(in, arrays, p);
  return p;
}

void serial(void*, void (*body)(void*, size_t), size_t count, void* user) {
  for (size_t i = 0; i < count; ++i) body(user, i);
}

void threaded(void*, void (*body)(void*, size_t), size_t count, void* user) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i = next++; i < count; i = next++) body(user, i);
  };
  std::thread one(work), two(work);
  work();
  one.join(), two.join();
}

// Whether the problem was accepted; the output, if it was.
bool compute(Problem p, void (*loop)(void*, void (*)(void*, size_t), size_t, void*), std::vector<char>& out) {
  p.y = out.data();
  try {
    sparsify::attend(p, SPARSIFY_LEVEL, Loop{nullptr, loop});
    return true;
  } catch (const sparsify::Failure& failure) {
    const size_t length = strlen(failure.what());
    if (length < 20 || failure.what()[length - 1] != '.') abort();
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes in(data, size);
  Arrays arrays;
  const Problem p = choose(in, arrays);
  const int64_t count = p.sizes.batch * p.sizes.q_heads * p.sizes.q_len * p.sizes.v_dim;
  std::vector<char> one(static_cast<size_t>(count * sparsify::bytes_of(p.element))), three = one;
  const bool computed = compute(p, serial, one);
  if (compute(p, threaded, three) != computed) abort();
  if (computed && one != three) abort();
  accepted += computed;
  return 0;
}
