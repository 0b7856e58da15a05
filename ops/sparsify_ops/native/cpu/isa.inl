// Assembles the kernel for one instruction set; the including file has set the vector width and the tile sizes.
#include "panel.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef SPARSIFY_PAIRS
#define SPARSIFY_PAIRS 0
#endif

namespace sparsify {
namespace {
constexpr int kWidth = SPARSIFY_WIDTH;
#include "vec.inl"
#include "elements.inl"
#include "group.inl"
#if SPARSIFY_PAIRS  // in which words numbers are multiplied
#include "pairs.inl"
#else
#include "floats.inl"
#endif
#include "tiles.inl"
#include "scores.inl"
#include "lanes.inl"
#include "panel.inl"
#include "few.inl"
#include "sums.inl"
#if SPARSIFY_PAIRS  // what is predicted is predicted in float32
constexpr decltype(Isa::mass_bytes) mass_bytes = nullptr;
constexpr decltype(Isa::mass) mass = nullptr;
#else
#include "mass.inl"
#endif

bool is_few(const PanelJob& job) { return job.row_count <= kFewRows && job.pseudo.count == 0; }

size_t scratch_bytes(const PanelJob& job) { return is_few(job) ? few_bytes(job) : panel_bytes(job); }

void attend(const PanelJob& job, void* memory) { is_few(job) ? attend_few(job, memory) : attend_panels(job, memory); }
}  // namespace
}  // namespace sparsify

#define SPARSIFY_ISA(name) {name, kMostRows, scratch_bytes, attend, moments, row_biases, from_float, mass_bytes, mass}
