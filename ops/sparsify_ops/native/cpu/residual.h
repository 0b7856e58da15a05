// What the keys that a query block leaves out contribute: one pseudo-key per group, made of their means.
#pragma once
#include <stdint.h>

#include <vector>

#include "keys.h"
#include "mask_states.h"
#include "panel.h"
#include "problem.h"

namespace sparsify {

// What a group of left-out keys adds to the logit of its mean key; see PseudoKeys.
struct Pseudo {
  float addend, deviation, slope;
};

// The groups of one head when nothing of them is kept: computed once and shared by every query block.
struct GroupStats {
  std::vector<float> k_mean, v_mean;  // [groups][dim]
  std::vector<float> squares;         // summed squared distances of the keys from their mean
  std::vector<Pseudo> pseudo;         // what the whole group adds to its logit
  std::vector<int32_t> count;         // keys that are not dead
};

struct ResidualTables {
  std::vector<GroupStats> tables;
  int64_t count = 0;           // of the tables in use
  int64_t heads = 0, heads_per_table = 1;
  const GroupStats& of(int64_t batch, int64_t head) const { return tables[batch * heads + head / heads_per_table]; }
};

// Sized for the problem; fill_table computes one entry, so that tables can be made in parallel.
void size_tables(const Problem&, const KeySets&, ResidualTables&);
// `keys` and `sums` are room to work in.
void fill_table(const Problem&, const KeySets&, const Isa&, int64_t index, std::vector<int32_t>& keys,
                std::vector<float>& sums, ResidualTables&);

// A block's pseudo-keys. The buffers are kept from block to block.
struct PseudoList {
  size_t count = 0;  // of the five vectors below, which only grow
  std::vector<const float*> k, v;
  std::vector<float> addend, deviation, slope;
  std::vector<float> row_addend;
  std::vector<int32_t> biased, ends;  // the keys behind each pseudo-key, where biases differ between rows
  std::vector<float> rows;  // means made for this block alone
  int64_t used = 0;         // floats of `rows` in use
  std::vector<uint8_t> state;
  std::vector<int32_t> left, removed;
  std::vector<float> sums;
  PseudoKeys view(const Problem&, int64_t rows_in_block) const;
};

struct BlockContext {
  const Problem& problem;
  const Block& block;
  const Limits& limits;
  const Kept& kept;
  const KeySets::Set& set;
  const GroupStats& stats;
  const Isa& isa;
  const uint8_t* states;  // of the keys, from MaskStates; null if no mask differs between rows
};

// Lists the keys to compute (kept ones and mixed groups) and the pseudo-keys of all that is left.
void split_groups(const BlockContext&, std::vector<int32_t>& keys, PseudoList&);

}  // namespace sparsify
