// How the rows of each query block see each key, when a mask or bias differs between rows.
#pragma once
#include <stdint.h>

#include <vector>

#include "keys.h"
#include "problem.h"

namespace sparsify {

enum State : uint8_t { forbidden = 0, mixed = 1, allowed = 2 };

// One row of keys per query block, shared by all heads if their masks are the same.
struct MaskStates {
  std::vector<uint8_t> states;
  int64_t heads = 0, blocks = 0, keys = 0;
  int64_t count() const { return keys ? static_cast<int64_t>(states.size()) / keys : 0; }
  const uint8_t* of(const Block&) const;
};

// Room to work in: of each key, whether the row at hand sees it, any does, every one does.
struct Seen {
  std::vector<uint8_t> yes, any, every;
  Limits limits;
};

// Sized for the problem, and empty when no mask differs between rows; fill_states computes one entry.
void size_states(const Problem&, MaskStates&);
void fill_states(const Problem&, int64_t index, Seen&, MaskStates&);

}  // namespace sparsify
