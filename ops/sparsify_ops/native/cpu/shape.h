// Shape inference for SparseAttention.
#pragma once
#include "ort_abi.h"

namespace sparsify {

OrtStatus* infer_shape(const OrtApi*, OrtShapeInferContext*);

}  // namespace sparsify
