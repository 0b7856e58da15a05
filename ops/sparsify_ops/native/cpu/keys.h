// Which keys the rows of one query block may see, and which of them are computed.
#pragma once
#include <stdint.h>

#include <vector>

#include "problem.h"

namespace sparsify {

// What is known of the keys before looking at any row: dead keys, and a bias they all share.
// One set per (batch, head) that differs; `of` finds it.
struct KeySets {
  struct Set {
    std::vector<uint8_t> dead;     // per key, empty if none is; key_lengths are not repeated here
    std::vector<float> key_bias;   // per key, natural units, empty if all zero
    std::vector<float> log2_bias;  // the same in log2 units
  };
  std::vector<Set> sets;
  int64_t batch_step = 0, head_step = 0;
  const Set& of(int64_t batch, int64_t head) const { return sets[batch * batch_step + head * head_step]; }
};
void fill_key_sets(const Problem&, KeySets&);

// The rows of one query block, of one head or of several that share their keys.
struct Block {
  int64_t batch, head, heads, index;
  int64_t first, rows;
};
// Item `item` where up to `together` heads of a group make one block. Heads of a group follow one another, so that
// they find their keys and values in the cache.
Block block_at(const Problem&, int64_t together, int64_t item);

// Causal and window limits of a block's rows, clipped to the keys that exist: row i sees [low[i], high[i]].
struct Limits {
  std::vector<int32_t> low, high;
  int64_t any_low, any_high;  // keys some row sees
  int64_t all_low, all_high;  // keys all rows see
};
void set_limits(const Problem&, const Block&, Limits&);

// The block's kept key blocks, ascending. Runs in parallel loops, so it does not throw: `wrong` says what is amiss.
struct Kept {
  bool everything = false;
  std::vector<int32_t> blocks;
  const char* wrong = nullptr;
};
void read_kept(const Problem&, const Block&, Kept&);

// Appends the keys of [begin, end) that are not dead.
void append_keys(const KeySets::Set&, int64_t begin, int64_t end, std::vector<int32_t>&);

int64_t estimated_keys(const Problem&, const Block&);

}  // namespace sparsify
