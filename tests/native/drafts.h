// Draws calls of every operator of the library: shapes that fit together, and attributes of which most are sensible.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "fake_ort.h"

enum class Fill { numbers, flags, integers, ids };

struct Input {
  std::vector<int64_t> dims;
  Fill fill;
  int64_t low, high;     // of integers; ids end before `high`
  bool given = true;
  bool foreign = false;  // of another element type than the operator takes
};

constexpr int64_t kLong = 9223372036854775807;
constexpr int64_t kAbsurd[] = {int64_t{1} << 31, int64_t{1} << 40, int64_t{1} << 62, kLong};
constexpr int64_t kWild[] = {0, -1, -2, 1 << 30, 2147483647, int64_t{1} << 31, kLong, -kLong - 1};

struct Draft {
  explicit Draft(Bytes& bytes) : in(bytes), hollow(bytes.once_in(12)) {}
  Bytes& in;
  bool hollow;  // made of empty tensors, whose other dimensions may then be of any size
  OrtKernelInfo attributes;
  std::vector<Input> inputs;

  int64_t size(int64_t most) {
    if (hollow ? in.coin() : in.once_in(100)) return in.coin() ? 0 : kAbsurd[in.below(4)];
    return 1 + in.below(most);
  }
  int64_t length(int64_t most) { return hollow ? 0 : size(most); }
  int64_t one_or(int64_t n) { return in.coin() ? n : 1; }

  // Gives back the sensible value, whatever is set.
  int64_t set(const char* name, int64_t value) {
    if (!in.once_in(100)) attributes.ints[name] = in.once_in(100) ? kWild[in.below(8)] : value;
    return value;
  }
  void set(const char* name, float value) {
    const auto bits = static_cast<uint32_t>(in.once_in(50) ? in.next(4) : sparsify::bits_of(value));
    if (!in.once_in(100)) attributes.floats[name] = sparsify::float_from_bits(bits);
  }

  void add(const std::vector<int64_t>& dims) { add(Fill::numbers, dims); }
  void add(Fill fill, const std::vector<int64_t>& dims, int64_t low = 0, int64_t high = 1) {
    inputs.push_back({dims, fill, low, high});
  }
  // A shape that broadcasts to `to`, often of fewer dimensions.
  std::vector<int64_t> narrowed(std::vector<int64_t> to) {
    for (int64_t& n : to) n = one_or(n);
    while (to.size() > 1 && to[0] == 1 && in.coin()) to.erase(to.begin());
    return to;
  }
};

inline int64_t blocks_of(int64_t length, int64_t block) { return length / block + (length % block != 0); }

struct Heads {
  int64_t q, kv;
};
inline Heads draw_heads(Draft& d) {
  const int64_t q = d.size(6), share = 1 + d.in.below(3);
  return {q, q % share == 0 ? q / share : d.one_or(q)};
}

struct Lengths {
  int64_t q, k;
};
// Now and then few queries on many keys, which are computed in ways of their own.
inline Lengths draw_lengths(Draft& d) {
  if (d.in.once_in(12)) return {d.length(4), d.length(5000)};
  return {d.length(70), d.length(100)};
}

inline void draw_attention(Draft& d) {
  Bytes& in = d.in;
  const Heads heads = draw_heads(d);
  const int64_t batch = d.size(2), dim = d.size(20), v_dim = d.size(20);
  const Lengths lengths = draw_lengths(d);
  const int64_t q_block = d.set("q_block", 1 + in.below(40)), k_block = d.set("k_block", d.one_or(1 + in.below(30)));
  const bool capped = in.once_in(4);
  d.set("scale", 0.25f), d.set("softcap", capped ? 3.0f : 0.0f);
  d.set("is_causal", in.below(2));
  d.set("left_window_size", in.below(50) - 1), d.set("right_window_size", in.below(50) - 1);
  d.set("residual", in.below(capped ? 2 : 3)), d.set("residual_block", k_block > 1 ? 0 : 1 + in.below(20));
  const int64_t blocks = blocks_of(lengths.q, q_block), all = blocks_of(lengths.k, k_block), listed = in.below(30);
  d.add({batch, heads.q, lengths.q, dim}), d.add({batch, heads.kv, lengths.k, dim}), d.add({batch, heads.kv, lengths.k, v_dim});
  d.add(Fill::ids, {d.one_or(batch), d.one_or(heads.q), blocks, listed}, 0, all);
  d.add(Fill::integers, {d.one_or(batch), d.one_or(heads.q), d.one_or(blocks)}, -1, listed);
  const std::vector<int64_t> scores = {batch, heads.q, lengths.q, lengths.k};
  d.add(Fill::flags, d.narrowed(scores)), d.add(d.narrowed(scores));
  d.add(Fill::integers, {d.one_or(batch)}, -1, lengths.k), d.add({d.one_or(heads.q)});
  d.add(Fill::integers, {d.one_or(batch)}, -100, 100);
}

inline void draw_mean_key_mass(Draft& d) {
  const Heads heads = draw_heads(d);
  const int64_t batch = d.size(2), dim = d.size(40);
  const Lengths lengths = draw_lengths(d);
  d.set("q_block", 1 + d.in.below(70)), d.set("k_block", 1 + d.in.below(40));
  d.set("scale", 0.25f), d.set("is_causal", d.in.below(2));
  d.add({batch, heads.q, lengths.q, dim}), d.add({batch, heads.kv, lengths.k, dim});
  d.add(Fill::integers, {d.one_or(batch)}, -100, 100);
}

inline void draw_quantized_mass(Draft& d) {
  d.set("bits", 2 + d.in.below(7));
  draw_mean_key_mass(d);
}

inline std::vector<int64_t> draw_scores(Draft& d) {
  const std::vector<int64_t> scores = {d.size(2), d.size(4), d.length(20), d.size(100)};
  d.add(scores);
  return scores;
}

inline void draw_top_k(Draft& d) {
  const std::vector<int64_t> scores = draw_scores(d);
  d.add(Fill::integers, d.narrowed({scores[0], scores[1], scores[2]}), -1, scores[3]);
}

inline void draw_top_p(Draft& d) {
  d.set("tau", static_cast<float>(d.in.below(120)) / 100.0f);
  draw_scores(d);
}

inline void draw_info(Draft& d) { d.add(Fill::integers, {d.size(3)}); }

// Whoever adds an operator adds how it is called.
inline void draw(const char* name, Draft& draft) {
  static const std::map<std::string, void (*)(Draft&)> kOperators = {
      {"SparseAttention", draw_attention}, {"MeanKeyMass", draw_mean_key_mass}, {"QuantizedMass", draw_quantized_mass},
      {"TopKBlocks", draw_top_k},          {"TopPBlocks", draw_top_p},          {"KernelInfo", draw_info}};
  kOperators.at(name)(draft);
}
