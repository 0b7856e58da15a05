// Reads the attributes and inputs of the operators that select blocks, and checks them before anything is computed.
#pragma once
#include "mass.h"
#include "tensor.h"

namespace sparsify {

// `rounds`: whether the operator has the attribute bits.
MassAttributes read_mass_attributes(const Runtime&, const OrtKernelInfo*, bool rounds);
// Without its outputs.
MassProblem read_mass_problem(const Runtime&, const OrtKernelContext*, const MassAttributes&, int element);

// Rows of scores of blocks, and how many of each row are wanted.
struct Rows {
  const float* scores;
  int64_t batch, heads, q_blocks, k_blocks;
  View<int64_t> counts;  // null where a share is wanted
  int64_t size() const { return product(batch, heads, q_blocks); }
  // The count of a row, between 1 and all.
  int64_t count(int64_t row) const;
};
Rows read_rows(const Runtime&, const OrtKernelContext*, bool counted);

float read_tau(const Runtime&, const OrtKernelInfo*);

}  // namespace sparsify
