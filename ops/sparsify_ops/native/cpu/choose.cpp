#include "choose.h"

#include <algorithm>

#include "element.h"

namespace sparsify {

namespace {

// One integer per block that sorts by falling score and then by rising id.
uint64_t place(float score, int64_t id) {
  const uint32_t bits = score == score ? bits_of(score + 0.0f) : 0xff800000u;
  const uint32_t rising = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(~rising) << 32 | static_cast<uint32_t>(id);
}

void list(const float* scores, int64_t n, std::vector<uint64_t>& order) {
  order.resize(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) order[i] = place(scores[i], i);
}

// Of the ids of the first `count` places.
void write(const std::vector<uint64_t>& order, int64_t count, int64_t capacity, int32_t* ids) {
  for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(order[i] & 0xffffffffu);
  std::sort(ids, ids + count);
  std::fill(ids + count, ids + capacity, -1);
}

}  // namespace

int64_t top_k(const float* scores, int64_t n, int64_t count, int64_t capacity, std::vector<uint64_t>& order,
              int32_t* ids) {
  list(scores, n, order);
  std::nth_element(order.begin(), order.begin() + (count - 1), order.end());
  write(order, count, capacity, ids);
  return count;
}

int64_t top_p(const float* scores, int64_t n, float tau, int64_t capacity, std::vector<uint64_t>& order,
              int32_t* ids) {
  list(scores, n, order);
  std::sort(order.begin(), order.end());
  const auto score = [&](int64_t i) { return scores[order[i] & 0xffffffffu]; };
  float total = 0, reached = 0;
  for (int64_t i = 0; i < n; ++i) total += score(i);
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {  // to the last bit as the body has it
    reached += score(i);
    count += reached - score(i) < total * tau;
  }
  count = std::max<int64_t>(count, 1);
  write(order, count, capacity, ids);
  return count;
}

}  // namespace sparsify
