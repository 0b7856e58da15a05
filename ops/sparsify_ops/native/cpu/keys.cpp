// Turns selection, limits and shared masks into ascending lists of keys.
#include "keys.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sparsify {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Finite where x is.
float to_log2(float x) {
  const float y = std::max(-kBound, std::min(kBound, x)) * 1.44269504088896341f;
  return std::fabs(x) <= std::numeric_limits<float>::max() ? y : x;
}

// A step of the loops below each, so that the compiler can turn them into vectors: a text that is written word by word
// goes through all keys again for every word.
void add_bias(const Problem& p, int64_t batch, int64_t head, KeySets::Set& set) {
  const void* bias = p.bias_at(batch, head, 0);
  const int64_t step = p.bias.stride[3];
  set.key_bias.resize(p.sizes.k_len);
  float* key_bias = set.key_bias.data();
  if (p.element == Element::f32 && step == 1) {
    std::copy_n(static_cast<const float*>(bias), p.sizes.k_len, key_bias);
  } else {
    for (int64_t key = 0; key < p.sizes.k_len; ++key) key_bias[key] = float_at(p.element, bias, key * step);
  }
  int forbids = 0, adds = 0;
  for (int64_t key = 0; key < p.sizes.k_len; ++key) {
    forbids |= key_bias[key] == -kInfinity;
    adds |= (key_bias[key] != 0) & (key_bias[key] != -kInfinity);
  }
  if (forbids) {
    set.dead.resize(p.sizes.k_len);
    for (int64_t key = 0; key < p.sizes.k_len; ++key) set.dead[key] |= set.key_bias[key] == -kInfinity;
  }
  if (!adds) return set.key_bias.clear();
  set.log2_bias.resize(p.sizes.k_len);
  std::transform(set.key_bias.begin(), set.key_bias.end(), set.log2_bias.begin(), to_log2);
}

void add_mask(const Problem& p, int64_t batch, int64_t head, KeySets::Set& set) {
  const uint8_t* mask = p.mask.at(batch, head);
  set.dead.resize(p.sizes.k_len);
  for (int64_t key = 0; key < p.sizes.k_len; ++key) set.dead[key] |= !mask[key * p.mask.stride[3]];
}

int64_t clip(int64_t x, int64_t low, int64_t high) { return std::max(low, std::min(high, x)); }

}  // namespace

void fill_key_sets(const Problem& p, KeySets& all) {
  const bool mask = p.mask && !p.row_mask(), bias = p.bias && !p.row_bias();
  const bool by_batch = (mask && p.mask.stride[0]) || (bias && p.bias.stride[0]);
  const bool by_head = (mask && p.mask.stride[1]) || (bias && p.bias.stride[1]);
  const int64_t batches = by_batch ? p.sizes.batch : 1, heads = by_head ? p.sizes.q_heads : 1;
  if (static_cast<int64_t>(all.sets.size()) < batches * heads) all.sets.resize(batches * heads);
  all.batch_step = by_batch ? heads : 0;
  all.head_step = by_head ? 1 : 0;
  for (int64_t i = 0; i < batches * heads; ++i) {
    KeySets::Set& set = all.sets[i];
    set.dead.clear(), set.key_bias.clear(), set.log2_bias.clear();
    if (mask) add_mask(p, i / heads, i % heads, set);
    if (bias) add_bias(p, i / heads, i % heads, set);
  }
}

Block block_at(const Problem& p, int64_t together, int64_t item) {
  const int64_t blocks = p.q_blocks(), parts = (p.group() + together - 1) / together;
  const int64_t part = item % parts, index = item / parts % blocks, pair = item / parts / blocks;
  Block b;
  // Late rows of a causal matrix see most, so they come first.
  b.index = p.limited() ? blocks - 1 - index : index;
  b.head = pair % p.sizes.kv_heads * p.group() + part * together;
  b.heads = std::min(together, p.group() - part * together);
  b.batch = pair / p.sizes.kv_heads;
  b.first = b.index * p.row_block();
  b.rows = std::min(p.row_block(), p.sizes.q_len - b.first);
  return b;
}

void set_limits(const Problem& p, const Block& b, Limits& out) {
  const int64_t length = p.key_length(b.batch);
  out.any_low = out.all_low = 0;
  out.any_high = out.all_high = length - 1;
  out.low.clear();
  out.high.clear();
  if (!p.limited()) return;
  const Attributes& a = p.attributes;
  const int64_t far = int64_t{1} << 40;  // farther than any key, and safe to add
  const int64_t left = a.left >= 0 ? std::min(a.left, far) : 4 * far;
  const int64_t right = a.causal ? 0 : a.right >= 0 ? std::min(a.right, far) : 4 * far;
  const int64_t position = clip(p.query_offset(b.batch), -far, far) + b.first;
  for (int64_t i = 0; i < b.rows; ++i) {
    out.low.push_back(static_cast<int32_t>(clip(position + i - left, 0, length)));
    out.high.push_back(static_cast<int32_t>(clip(position + i + right, -1, length - 1)));
  }
  out.any_low = out.low.front(), out.all_low = out.low.back();
  out.all_high = out.high.front(), out.any_high = out.high.back();
}

void read_kept(const Problem& p, const Block& b, Kept& out) {
  out.blocks.clear();
  out.wrong = nullptr;
  const int32_t count = p.counts ? *p.counts.at(b.batch, b.head, b.index) : -1;
  out.everything = count == -1;
  if (out.everything) return;
  if (count < -1 || count > p.listed) {
    out.wrong = "input block_count must lie between -1 and the last dimension of block_indices";
    return;
  }
  const int32_t* ids = p.indices.at(b.batch, b.head, b.index);
  const int64_t blocks = p.k_blocks();
  int64_t last = -1;
  for (int32_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= blocks) continue;  // padding
    if (ids[i] <= last) {
      out.wrong = "input block_indices must be ascending without repeats";
      return;
    }
    last = ids[i];
    out.blocks.push_back(ids[i]);
  }
}

void append_keys(const KeySets::Set& set, int64_t begin, int64_t end, std::vector<int32_t>& keys) {
  if (begin >= end) return;
  const size_t at = keys.size();
  keys.resize(at + static_cast<size_t>(end - begin));
  int32_t* to = keys.data() + at;
  if (set.dead.empty()) {
    for (int64_t key = begin; key < end; ++key) *to++ = static_cast<int32_t>(key);
    return;
  }
  for (int64_t key = begin; key < end; ++key) {
    *to = static_cast<int32_t>(key);
    to += !set.dead[key];
  }
  keys.resize(static_cast<size_t>(to - keys.data()));
}

int64_t estimated_keys(const Problem& p, const Block& b) {
  const int32_t count = p.counts ? *p.counts.at(b.batch, b.head, b.index) : -1;
  const int64_t length = p.key_length(b.batch);
  int64_t keys = count < 0 ? length : std::min(length, count * p.attributes.k_block);
  if (!p.limited()) return keys;
  Block edge = b;
  edge.rows = 1;
  Limits first, last;
  set_limits(p, edge, first);
  edge.first = b.first + b.rows - 1;
  set_limits(p, edge, last);
  return clip(last.any_high - first.any_low + 1, 0, keys);
}

}  // namespace sparsify
