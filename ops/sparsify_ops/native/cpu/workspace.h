// What a thread keeps from call to call, so that a call allocates nothing once the largest has been seen.
#pragma once
#include <stdlib.h>

#include <new>
#include <vector>

#include "keys.h"
#include "mask_states.h"
#include "panel.h"
#include "residual.h"

namespace sparsify {

// 64-byte aligned memory that only grows.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { free(memory_); }
  void* at_least(size_t bytes) {
    if (bytes + 64 > bytes_) {
      free(memory_);
      bytes_ = 0;
      memory_ = malloc(bytes + 64);
      if (!memory_) throw std::bad_alloc();
      bytes_ = bytes + 64;
    }
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_) + 63) & ~uintptr_t{63});
  }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Of a thread that computes blocks.
struct Workspace {
  Arena panel;
  Limits limits;
  Kept kept;
  std::vector<int32_t> keys;
  std::vector<Row> rows;
  PseudoList pseudo;
  Seen seen;
};

// Of a thread that was called: what all blocks share.
struct Shared {
  KeySets sets;
  ResidualTables tables;
  MaskStates states;
  std::vector<int64_t> chunks;  // first item of each chunk, then the number of items
  std::vector<float> parts;     // unfinished rows of slices, see Part
};

}  // namespace sparsify
