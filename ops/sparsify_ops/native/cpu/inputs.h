// Reads SparseAttention's attributes and inputs and checks all of them before anything is computed.
#pragma once
#include "problem.h"
#include "tensor.h"

namespace sparsify {

Attributes read_attributes(const Runtime&, const OrtKernelInfo*);

// One call's inputs, checked.
Problem read_problem(const Runtime&, const OrtKernelContext*, const Attributes&, int element);

}  // namespace sparsify
