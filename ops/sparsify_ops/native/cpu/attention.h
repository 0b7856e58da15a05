// Runs one checked call of SparseAttention.
#pragma once
#include <stddef.h>

#include "panel.h"
#include "problem.h"

namespace sparsify {

// Runs body(user, i) for i in [0, count), in any order, possibly in parallel.
struct Loop {
  void* context;
  void (*run)(void* context, void (*body)(void* user, size_t index), size_t count, void* user);
};

// Throws Failure when the selection turns out to be malformed.
void attend(const Problem&, const Isa&, const Loop&);

}  // namespace sparsify
