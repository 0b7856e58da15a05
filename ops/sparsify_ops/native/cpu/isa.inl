// Assembles the kernel for one instruction set; the including file has set the vector width and the tile sizes.
#include "panel.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace sparsify {
namespace {
constexpr int kWidth = SPARSIFY_WIDTH;
#include "vec.inl"
#include "tiles.inl"
#include "scores.inl"
#include "panel.inl"
#include "half.inl"
#include "sums.inl"
}  // namespace
}  // namespace sparsify

#define SPARSIFY_ISA(name)                                                                                       \
  {name, kLanes, scratch_bytes, attend, moments, row_biases, half_to_float, bfloat_to_float,      \
   float_to_half, float_to_bfloat}
