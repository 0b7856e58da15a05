// Every rule that an input or attribute of SparseAttention must obey, and the sentence for whoever breaks it.
#include "inputs.h"

#include <algorithm>
#include <limits>

namespace sparsify {

namespace {

constexpr const char* kNames[] = {"Q",         "K",         "V",           "block_indices", "block_count",
                                  "attn_mask", "attn_bias", "key_lengths", "sinks",         "query_offset"};

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

void read_sizes(const Tensor& q, const Tensor& k, const Tensor& v, Problem& p) {
  expect_rank(q, 4, "Q"), expect_rank(k, 4, "K"), expect_rank(v, 4, "V");
  p.sizes = {q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]};
  p.q = q.data, p.k = k.data, p.v = v.data;
  const Sizes& s = p.sizes;
  if (k.shape[0] != s.batch || v.shape[0] != s.batch || v.shape[1] != s.kv_heads || v.shape[2] != s.k_len ||
      k.shape[3] != s.qk_dim) {
    throw Failure("Q " + text(q) + ", K " + text(k) + " and V " + text(v) +
                  " do not fit together; expected [B, Hq, Sq, D], [B, Hkv, Sk, D] and [B, Hkv, Sk, Dv].");
  }
  expect_heads(s.q_heads, s.kv_heads);
  expect_lengths(s.q_len, s.k_len);
}

void read_selection(const Tensor& indices, const Tensor& counts, Problem& p) {
  if (!indices && !counts) return;
  if (!indices || !counts) throw Failure("block_indices and block_count must be given together or both left out.");
  expect_rank(indices, 4, "block_indices"), expect_rank(counts, 3, "block_count");
  const int64_t batch = p.sizes.batch, heads = p.sizes.q_heads, blocks = p.q_blocks();
  expect_one_or(counts.shape[0], batch, "block_count", "batch");
  expect_one_or(counts.shape[1], heads, "block_count", "head");
  expect_one_or(counts.shape[2], blocks, "block_count", "query-block");
  if (all_kept(counts)) return;
  expect_one_or(indices.shape[0], batch, "block_indices", "batch");
  expect_one_or(indices.shape[1], heads, "block_indices", "head");
  if (indices.shape[2] != blocks) {
    throw Failure("input block_indices: its query-block dimension must be " + std::to_string(blocks) + ", not " +
                  std::to_string(indices.shape[2]) + ".");
  }
  p.listed = indices.shape[3];
  broadcast(indices, {batch, heads, blocks, p.listed}, "block_indices", p.indices.stride);
  p.indices.data = static_cast<const int32_t*>(indices.data);
  const int64_t* n = counts.shape;
  int64_t(&step)[4] = p.counts.stride;
  step[0] = n[0] == 1 ? 0 : product(n[1], n[2]), step[1] = n[1] == 1 ? 0 : n[2], step[2] = n[2] == 1 ? 0 : 1;
  p.counts.data = static_cast<const int32_t*>(counts.data);
}

// The neutral mask and bias, one True or one 0, are as good as none.
void read_masks(const Tensor& mask, const Tensor& bias, Problem& p) {
  const Sizes& s = p.sizes;
  const int64_t scores[4] = {s.batch, s.q_heads, s.q_len, s.k_len};
  if (mask) broadcast(mask, scores, "attn_mask", p.mask.stride);
  if (bias) broadcast(bias, scores, "attn_bias", p.bias.stride);
  const auto* allowed = static_cast<const uint8_t*>(mask.data);
  if (mask && !(mask.size() == 1 && *allowed)) p.mask.data = allowed;
  if (bias && !(bias.size() == 1 && float_at(p.element, bias.data, 0) == 0)) p.bias.data = bias.data;
}

}  // namespace

Attributes read_attributes(const Runtime& ort, const OrtKernelInfo* info) {
  Attributes a;
  int64_t causal = 0, residual = 0;
  if (!ort.attribute(kGetAttributeFloat, info, "scale", a.scale)) {
    throw Failure("attribute scale (a float) is missing.");
  }
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

Problem read_problem(const Runtime& ort, const OrtKernelContext* context, const Attributes& attributes, int element) {
  const Reader reader(ort, context, kNames, 3);
  Problem p{};
  p.attributes = attributes;
  p.element = element_of(element);
  read_sizes(reader.take(0, element), reader.take(1, element), reader.take(2, element), p);
  read_selection(reader.take(3, kOrtInt32), reader.take(4, kOrtInt32), p);
  if (!p.counts) p.attributes.residual = Residual::none;
  read_masks(reader.take(5, kOrtBool), reader.take(6, element), p);
  read_vector(reader.take(7, kOrtInt64), p.sizes.batch, "key_lengths", "batch", p.lengths);
  read_vector(reader.take(8, element), p.sizes.q_heads, "sinks", "head", p.sinks);
  read_vector(reader.take(9, kOrtInt64), p.sizes.batch, "query_offset", "batch", p.offsets);
  return p;
}

}  // namespace sparsify
