// From the scores of a row of blocks to the ids of those it keeps.
#pragma once
#include <stdint.h>

#include <vector>

namespace sparsify {

// Both write ascending ids and then -1 up to `capacity`, and return how many ids there are. Where scores are equal the
// lower id comes first; NaN counts as the lowest score. `order` is room to work in.

// The `count` highest of n scores; 0 < count <= n.
int64_t top_k(const float* scores, int64_t n, int64_t count, int64_t capacity, std::vector<uint64_t>& order,
              int32_t* ids);

// The fewest, by falling score, whose float32 sum reaches `tau` of all; at least one.
int64_t top_p(const float* scores, int64_t n, float tau, int64_t capacity, std::vector<uint64_t>& order,
              int32_t* ids);

}  // namespace sparsify
