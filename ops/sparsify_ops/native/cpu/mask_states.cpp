// Looks at every element of a mask once, to learn which keys a query block sees whole, in part or not at all.
#include "mask_states.h"

#include <algorithm>
#include <limits>

namespace sparsify {

namespace {

// yes[key - begin] for the keys [begin, end) of one row.
void read_row(const Problem& p, const Block& b, int64_t row, int64_t begin, int64_t end, uint8_t* yes) {
  std::fill(yes, yes + (end - begin), uint8_t{1});
  if (p.row_mask()) {
    const uint8_t* mask = p.mask.at(b.batch, b.head, b.first + row);
    for (int64_t key = begin; key < end; ++key) yes[key - begin] = mask[key * p.mask.stride[3]] != 0;
  }
  if (!p.row_bias()) return;
  const void* bias = p.bias_at(b.batch, b.head, b.first + row);
  const float lowest = -std::numeric_limits<float>::infinity();
  for (int64_t key = begin; key < end; ++key) {
    yes[key - begin] &= !(float_at(p.element, bias, key * p.bias.stride[3]) == lowest);
  }
}

}  // namespace

const uint8_t* MaskStates::of(const Block& b) const {
  if (states.empty()) return nullptr;
  const int64_t head = heads > 1 ? b.head : 0;
  return states.data() + ((b.batch * heads + head) * blocks + b.index) * keys;
}

void size_states(const Problem& p, MaskStates& all) {
  all.states.clear();
  all.keys = 0;
  if (!p.row_mask() && !p.row_bias()) return;
  const bool by_head = (p.row_mask() && p.mask.stride[1]) || (p.row_bias() && p.bias.stride[1]);
  all.heads = by_head ? p.sizes.q_heads : 1;
  all.blocks = p.q_blocks();
  all.keys = p.sizes.k_len;
  all.states.resize(p.sizes.batch * all.heads * all.blocks * all.keys);
}

void fill_states(const Problem& p, int64_t index, Seen& seen, MaskStates& all) {
  Block b{};
  b.index = index % all.blocks;
  b.head = index / all.blocks % all.heads;
  b.batch = index / all.blocks / all.heads;
  b.first = b.index * p.row_block();
  b.rows = std::min(p.row_block(), p.sizes.q_len - b.first);
  Limits& limits = seen.limits;
  set_limits(p, b, limits);
  std::vector<uint8_t>&yes = seen.yes, &any = seen.any, &every = seen.every;
  yes.resize(all.keys), any.assign(all.keys, 0), every.assign(all.keys, 1);
  for (int64_t row = 0; row < b.rows; ++row) {
    const int64_t begin = limits.low.empty() ? 0 : limits.low[row];
    const int64_t end = std::max(begin, limits.low.empty() ? limits.any_high + 1 : limits.high[row] + int64_t{1});
    read_row(p, b, row, begin, end, yes.data() + begin);
    std::fill(every.begin(), every.begin() + begin, uint8_t{0});
    std::fill(every.begin() + end, every.end(), uint8_t{0});
    for (int64_t key = begin; key < end; ++key) any[key] |= yes[key], every[key] &= yes[key];
  }
  uint8_t* states = all.states.data() + index * all.keys;
  for (int64_t key = 0; key < all.keys; ++key) states[key] = any[key] + (any[key] & every[key]);
}

}  // namespace sparsify
