// Every rule that an input or attribute of SparseAttention must obey, and the sentence for whoever breaks it.
#include "inputs.h"

#include <algorithm>
#include <limits>

namespace sparsify {

namespace {

constexpr const char* kNames[] = {"Q",         "K",         "V",           "block_indices", "block_count",
                                  "attn_mask", "attn_bias", "key_lengths", "sinks",         "query_offset"};

[[noreturn]] void fail(const std::string& text) { throw Failure("SparseAttention: " + text); }

std::string text(const std::vector<int64_t>& shape) {
  std::string out;
  for (int64_t n : shape) out += (out.empty() ? "" : ", ") + std::to_string(n);
  return "[" + out + "]";
}

void expect_rank(const Tensor& t, size_t rank, const char* name) {
  if (t.shape.size() == rank) return;
  fail(std::string("input ") + name + " must have " + std::to_string(rank) + " dimensions, but its shape is " +
       text(t.shape) + ".");
}

void expect_one_or(int64_t n, int64_t wanted, const char* name, const char* dimension) {
  if (n == wanted || n == 1) return;
  fail(std::string("input ") + name + ": its " + dimension + " dimension must be 1" +
       (wanted == 1 ? "" : " or " + std::to_string(wanted)) + ", not " + std::to_string(n) + ".");
}

void expect(bool holds, const char* attribute, const char* rule) {
  if (!holds) fail(std::string("attribute ") + attribute + " must be " + rule + ".");
}

// Strides of a contiguous tensor broadcast to four dimensions; dimensions of length 1 get stride 0.
void broadcast(const Tensor& t, const std::vector<int64_t>& to, const char* name, int64_t (&stride)[4]) {
  const size_t rank = t.shape.size();
  if (rank < 1 || rank > 4) fail(std::string("input ") + name + " must have 1 to 4 dimensions.");
  int64_t step = 1;
  for (size_t i = 0; i < 4; ++i) {
    const int64_t n = i < rank ? t.shape[rank - 1 - i] : 1;
    if (n != 1 && n != to[3 - i]) {
      fail(std::string("input ") + name + " of shape " + text(t.shape) + " does not broadcast to " + text(to) + ".");
    }
    stride[3 - i] = n == 1 ? 0 : step;
    step *= n;
  }
}

std::vector<int64_t> per_batch(const Tensor& t, int64_t batch, int64_t neutral, const char* name) {
  if (!t) return std::vector<int64_t>(batch, neutral);
  expect_rank(t, 1, name);
  expect_one_or(t.shape[0], batch, name, "batch");
  const int64_t* data = static_cast<const int64_t*>(t.data);
  std::vector<int64_t> out(batch);
  for (int64_t b = 0; b < batch; ++b) out[b] = data[t.shape[0] == 1 ? 0 : b];
  return out;
}

bool all_kept(const Tensor& counts) {
  const int32_t* data = static_cast<const int32_t*>(counts.data);
  return std::all_of(data, data + counts.size(), [](int32_t n) { return n == -1; });
}

void check(const Attributes& a) {
  const int64_t most = std::numeric_limits<int32_t>::max();
  expect(a.q_block > 0 && a.q_block <= most, "q_block", "a positive number below 2^31");
  expect(a.k_block > 0 && a.k_block <= most, "k_block", "a positive number below 2^31");
  expect(a.softcap >= 0, "softcap", "0 (off) or positive");
  expect(a.left >= -1, "left_window_size", "-1 (off) or at least 0");
  expect(a.right >= -1, "right_window_size", "-1 (off) or at least 0");
  const auto residual = static_cast<int64_t>(a.residual);
  expect(residual >= 0 && residual <= 2, "residual", "0 (none), 1 (mean) or 2 (iso)");
  const bool fits = a.residual != Residual::iso || a.softcap == 0;
  expect(fits, "residual", "0 or 1 when softcap is on: iso has no meaning there");
  expect(a.residual_block >= 0 && a.residual_block <= most, "residual_block", "0 or a positive number below 2^31");
  if (a.k_block > 1) {
    const bool same = !a.residual_block || a.residual_block == a.k_block;
    expect(same, "residual_block", "k_block or 0 unless k_block is 1");
  } else {
    const bool given = a.residual == Residual::none || a.residual_block > 0;
    expect(given, "residual_block", "positive when k_block is 1 and residual is on");
  }
}

}  // namespace

int64_t Tensor::size() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

Tensor read_tensor(const Runtime& ort, const OrtValue* value, const char* name, int element) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ort.call(kGetTensorTypeAndShape, "describe an input", value, &info);
  struct Release {
    const OrtApi* api;
    OrtTensorTypeAndShapeInfo* info;
    ~Release() { kReleaseShapeInfo(api, info); }
  } release{ort.api(), info};
  int found = 0;
  ort.call(kGetElementType, "tell an input's type", info, &found);
  if (found != element) fail(std::string("input ") + name + " has the wrong element type.");
  size_t rank = 0;
  ort.call(kGetDimensionsCount, "tell an input's rank", info, &rank);
  Tensor t;
  t.present = true;
  t.shape.resize(rank);
  ort.call(kGetDimensions, "tell an input's shape", info, t.shape.data(), rank);
  ort.call(kGetTensorMutableData, "give an input's data", const_cast<OrtValue*>(value), &t.data);
  return t;
}

Attributes read_attributes(const Runtime& ort, const OrtKernelInfo* info) {
  Attributes a;
  int64_t causal = 0, residual = 0;
  if (!ort.attribute(kGetAttributeFloat, info, "scale", a.scale)) fail("attribute scale (a float) is missing.");
  ort.attribute(kGetAttributeFloat, info, "softcap", a.softcap);
  ort.attribute(kGetAttributeInt, info, "q_block", a.q_block);
  ort.attribute(kGetAttributeInt, info, "k_block", a.k_block);
  ort.attribute(kGetAttributeInt, info, "is_causal", causal);
  ort.attribute(kGetAttributeInt, info, "left_window_size", a.left);
  ort.attribute(kGetAttributeInt, info, "right_window_size", a.right);
  ort.attribute(kGetAttributeInt, info, "residual", residual);
  ort.attribute(kGetAttributeInt, info, "residual_block", a.residual_block);
  expect(causal == 0 || causal == 1, "is_causal", "0 or 1");
  a.causal = causal == 1;
  a.residual = static_cast<Residual>(residual);
  check(a);
  return a;
}

Tensor Inputs::take(const Runtime& ort, const OrtKernelContext* context, size_t index, int element) const {
  const OrtValue* value = nullptr;
  if (index < given_) ort.call(kGetInput, "hand over an input", context, index, &value);
  if (value) return read_tensor(ort, value, kNames[index], element);
  if (index < 3) fail(std::string("input ") + kNames[index] + " is missing.");
  return {};
}

const float* Inputs::floats(const Tensor& t, int element, const Isa& isa, const Loop& loop) {
  if (!t || element == kOrtFloat) return static_cast<const float*>(t.data);
  converted_.emplace_back(new float[static_cast<size_t>(t.size()) + 1]);
  to_float(isa, loop, element, t.data, converted_.back().get(), t.size());
  return converted_.back().get();
}

void Inputs::read_sizes(const Tensor& q, const Tensor& k, const Tensor& v) {
  expect_rank(q, 4, "Q"), expect_rank(k, 4, "K"), expect_rank(v, 4, "V");
  problem.sizes = {q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]};
  const Sizes& s = problem.sizes;
  if (k.shape[0] != s.batch || v.shape[0] != s.batch || v.shape[1] != s.kv_heads || v.shape[2] != s.k_len ||
      k.shape[3] != s.qk_dim) {
    fail("Q " + text(q.shape) + ", K " + text(k.shape) + " and V " + text(v.shape) +
         " do not fit together; expected [B, Hq, Sq, D], [B, Hkv, Sk, D] and [B, Hkv, Sk, Dv].");
  }
  if (s.q_heads && (s.kv_heads == 0 || s.q_heads % s.kv_heads)) {
    fail("the " + std::to_string(s.q_heads) + " heads of Q are no multiple of the " + std::to_string(s.kv_heads) +
         " heads of K.");
  }
  const int64_t most = std::numeric_limits<int32_t>::max();
  if (s.q_len >= most || s.k_len >= most) fail("sequences must be shorter than 2^31.");
}

void Inputs::read_selection(const Tensor& indices, const Tensor& counts) {
  if (!indices && !counts) return;
  if (!indices || !counts) fail("block_indices and block_count must be given together or both left out.");
  expect_rank(indices, 4, "block_indices"), expect_rank(counts, 3, "block_count");
  const int64_t batch = problem.sizes.batch, heads = problem.sizes.q_heads, blocks = problem.q_blocks();
  expect_one_or(counts.shape[0], batch, "block_count", "batch");
  expect_one_or(counts.shape[1], heads, "block_count", "head");
  expect_one_or(counts.shape[2], blocks, "block_count", "query-block");
  if (all_kept(counts)) return;
  expect_one_or(indices.shape[0], batch, "block_indices", "batch");
  expect_one_or(indices.shape[1], heads, "block_indices", "head");
  if (indices.shape[2] != blocks) {
    fail("input block_indices: its query-block dimension must be " + std::to_string(blocks) + ", not " +
         std::to_string(indices.shape[2]) + ".");
  }
  problem.listed = indices.shape[3];
  broadcast(indices, {batch, heads, blocks, problem.listed}, "block_indices", problem.indices.stride);
  problem.indices.data = static_cast<const int32_t*>(indices.data);
  const int64_t* n = counts.shape.data();
  int64_t(&step)[4] = problem.counts.stride;
  step[0] = n[0] == 1 ? 0 : n[1] * n[2], step[1] = n[1] == 1 ? 0 : n[2], step[2] = n[2] == 1 ? 0 : 1;
  problem.counts.data = static_cast<const int32_t*>(counts.data);
}

void Inputs::read_vectors(const Tensor& lengths, const Tensor& offsets, const Tensor& sinks, const float* values) {
  const Sizes& s = problem.sizes;
  for (int64_t n : per_batch(lengths, s.batch, s.k_len, "key_lengths")) {
    problem.key_lengths.push_back(static_cast<int32_t>(std::max<int64_t>(0, std::min(n, s.k_len))));
  }
  problem.query_offsets = per_batch(offsets, s.batch, 0, "query_offset");
  problem.sinks.assign(s.q_heads, -std::numeric_limits<float>::infinity());
  if (!sinks) return;
  expect_rank(sinks, 1, "sinks");
  expect_one_or(sinks.shape[0], s.q_heads, "sinks", "head");
  for (int64_t h = 0; h < s.q_heads; ++h) problem.sinks[h] = values[sinks.shape[0] == 1 ? 0 : h];
}

Inputs::Inputs(const Runtime& ort, const OrtKernelContext* context, const Attributes& attributes, int element,
               const Isa& isa, const Loop& loop) {
  problem.attributes = attributes;
  ort.call(kGetInputCount, "count the inputs", context, &given_);
  const Tensor q = take(ort, context, 0, element), k = take(ort, context, 1, element);
  const Tensor v = take(ort, context, 2, element);
  read_sizes(q, k, v);
  const Tensor indices = take(ort, context, 3, kOrtInt32), counts = take(ort, context, 4, kOrtInt32);
  read_selection(indices, counts);
  // With every block kept the block size means nothing; this one suits the kernel.
  if (!problem.counts) problem.attributes.q_block = 64, problem.attributes.residual = Residual::none;
  const Sizes& s = problem.sizes;
  const std::vector<int64_t> scores{s.batch, s.q_heads, s.q_len, s.k_len};
  const Tensor mask = take(ort, context, 5, kOrtBool), bias = take(ort, context, 6, element);
  if (mask) broadcast(mask, scores, "attn_mask", problem.mask.stride);
  if (mask && !(mask.size() == 1 && *static_cast<const uint8_t*>(mask.data))) {
    problem.mask.data = static_cast<const uint8_t*>(mask.data);
  }
  if (bias) broadcast(bias, scores, "attn_bias", problem.bias.stride);
  const float* bias_values = floats(bias, element, isa, loop);
  if (bias && !(bias.size() == 1 && bias_values[0] == 0)) problem.bias.data = bias_values;
  const Tensor lengths = take(ort, context, 7, kOrtInt64), sinks = take(ort, context, 8, element);
  read_vectors(lengths, take(ort, context, 9, kOrtInt64), sinks, floats(sinks, element, isa, loop));
  problem.q = floats(q, element, isa, loop);
  problem.k = floats(k, element, isa, loop);
  problem.v = floats(v, element, isa, loop);
}

}  // namespace sparsify
