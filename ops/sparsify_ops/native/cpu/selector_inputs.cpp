#include "selector_inputs.h"

#include <algorithm>
#include <limits>

namespace sparsify {

namespace {

constexpr const char* kMassNames[] = {"Q", "K", "query_offset"};
constexpr const char* kRowNames[] = {"scores", "count"};

}  // namespace

MassAttributes read_mass_attributes(const Runtime& ort, const OrtKernelInfo* info, bool rounds) {
  MassAttributes a;
  int64_t causal = 0;
  if (!ort.attribute(kGetAttributeFloat, info, "scale", a.scale)) {
    throw Failure("attribute scale (a float) is missing.");
  }
  ort.attribute(kGetAttributeInt, info, "q_block", a.q_block);
  ort.attribute(kGetAttributeInt, info, "k_block", a.k_block);
  ort.attribute(kGetAttributeInt, info, "is_causal", causal);
  const int64_t most = std::numeric_limits<int32_t>::max();
  expect(a.q_block > 0 && a.q_block <= most, "q_block", "a positive number below 2^31");
  expect(a.k_block > 0 && a.k_block <= most, "k_block", "a positive number below 2^31");
  expect(causal == 0 || causal == 1, "is_causal", "0 or 1");
  a.causal = causal == 1;
  if (rounds) {
    a.bits = 4;
    ort.attribute(kGetAttributeInt, info, "bits", a.bits);
    expect(a.bits >= 2 && a.bits <= 8, "bits", "a number from 2 to 8");
  }
  return a;
}

MassProblem read_mass_problem(const Runtime& ort, const OrtKernelContext* context, const MassAttributes& attributes,
                              int element) {
  const Reader reader(ort, context, kMassNames, 2);
  const Tensor q = reader.take(0, element), k = reader.take(1, element);
  expect_rank(q, 4, "Q"), expect_rank(k, 4, "K");
  MassProblem p{};
  p.attributes = attributes;
  p.element = element_of(element);
  p.sizes = {q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], 0};
  p.q = q.data, p.k = k.data;
  if (k.shape[0] != p.sizes.batch || k.shape[3] != p.sizes.qk_dim) {
    throw Failure("Q " + text(q) + " and K " + text(k) +
                  " do not fit together; expected [B, Hq, Sq, D] and [B, Hkv, Sk, D].");
  }
  expect_heads(p.sizes.q_heads, p.sizes.kv_heads);
  expect_lengths(p.sizes.q_len, p.sizes.k_len);
  read_vector(reader.take(2, kOrtInt64), p.sizes.batch, "query_offset", "batch", p.offsets);
  return p;
}

Rows read_rows(const Runtime& ort, const OrtKernelContext* context, bool counted) {
  const Reader reader(ort, context, kRowNames, counted ? 2 : 1);
  const Tensor scores = reader.take(0, kOrtFloat);
  expect_rank(scores, 4, "scores");
  const int64_t* n = scores.shape;
  Rows rows{static_cast<const float*>(scores.data), n[0], n[1], n[2], n[3], {}};
  expect_lengths(n[2], n[3]);
  if (n[3] == 0) throw Failure("input scores has no key blocks to choose from.");
  if (!counted) return rows;
  const Tensor counts = reader.take(1, kOrtInt64);
  broadcast(counts, {1, n[0], n[1], n[2]}, "count", rows.counts.stride);
  rows.counts.data = static_cast<const int64_t*>(counts.data);
  return rows;
}

int64_t Rows::count(int64_t row) const {
  const int64_t* wanted = counts.at(0, row / (heads * q_blocks), row / q_blocks % heads);
  return std::clamp<int64_t>(wanted[row % q_blocks * counts.stride[3]], 1, k_blocks);
}

float read_tau(const Runtime& ort, const OrtKernelInfo* info) {
  float tau = 1.0f;
  ort.attribute(kGetAttributeFloat, info, "tau", tau);
  expect(tau >= 0, "tau", "at least 0");
  return tau;
}

}  // namespace sparsify
