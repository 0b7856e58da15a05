// Looks at every element of a mask once, to learn which keys a query block sees whole, in part or not at all.
#include "mask_states.h"

#include <algorithm>

namespace sparsify {

namespace {

// Clears `yes` where a bias is -inf, whose bits are `lowest`. Most often the biases are neighbours, in a loop that the
// compiler can turn into vectors.
template <class Bits>
void strike_lowest(const Bits* bias, int64_t step, Bits lowest, int64_t count, uint8_t* yes) {
  if (step == 1) {
    for (int64_t i = 0; i < count; ++i) yes[i] &= bias[i] != lowest;
  } else {
    for (int64_t i = 0; i < count; ++i) yes[i] &= bias[i * step] != lowest;
  }
}

void read_bias(Element element, const void* bias, int64_t step, int64_t count, uint8_t* yes) {
  if (element == Element::f32) return strike_lowest(static_cast<const uint32_t*>(bias), step, 0xff800000u, count, yes);
  const uint16_t lowest = element == Element::f16 ? 0xfc00 : 0xff80;
  strike_lowest(static_cast<const uint16_t*>(bias), step, lowest, count, yes);
}

void read_mask(const uint8_t* __restrict mask, int64_t step, int64_t count, uint8_t* __restrict yes) {
  if (step == 1) {
    for (int64_t i = 0; i < count; ++i) yes[i] = mask[i] != 0;
  } else {
    for (int64_t i = 0; i < count; ++i) yes[i] = mask[i * step] != 0;
  }
}

// yes[key - begin] for the keys [begin, end) of one row.
void read_row(const Problem& p, const Block& b, int64_t row, int64_t begin, int64_t end, uint8_t* yes) {
  std::fill(yes, yes + (end - begin), uint8_t{1});
  if (p.row_mask()) {
    const int64_t step = p.mask.stride[3];
    read_mask(p.mask.at(b.batch, b.head, b.first + row) + begin * step, step, end - begin, yes);
  }
  if (!p.row_bias()) return;
  const void* bias = p.bias_at(b.batch, b.head, b.first + row);
  const int64_t step = p.bias.stride[3];
  read_bias(p.element, element_at(p.element, bias, begin * step), step, end - begin, yes);
}

// The arrays do not overlap; what the compiler would have to fear for bytes, which may alias anything.
void note_row(const uint8_t* yes, int64_t count, uint8_t* __restrict any, uint8_t* __restrict every) {
  for (int64_t i = 0; i < count; ++i) any[i] |= yes[i], every[i] &= yes[i];
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
    note_row(yes.data() + begin, end - begin, any.data() + begin, every.data() + begin);
  }
  uint8_t* states = all.states.data() + index * all.keys;
  for (int64_t key = 0; key < all.keys; ++key) states[key] = any[key] + (any[key] & every[key]);
}

}  // namespace sparsify
