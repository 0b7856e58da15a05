// Cuts a call into query blocks, groups blocks into chunks of similar work and runs them.
#include "attention.h"

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "keys.h"
#include "residual.h"

namespace sparsify {

namespace {

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

// What a thread keeps from block to block, and from call to call.
struct Workspace {
  Arena panel;
  Limits limits;
  Kept kept;
  std::vector<int32_t> keys;
  PseudoList pseudo;
};
thread_local Workspace workspace;

struct Call {
  const Problem& problem;
  const Isa& isa;
  KeySets sets;
  ResidualTables tables;
  MaskStates states;
  std::vector<int64_t> chunks;  // first item of each chunk, then the number of items
  std::atomic<const char*> wrong{nullptr};
};

void list_kept(const Problem& p, const KeySets::Set& set, Workspace& w) {
  const int64_t begin = w.limits.any_low, end = w.limits.any_high + 1, step = p.attributes.k_block;
  if (w.kept.everything) return append_keys(set, begin, end, w.keys);
  for (int64_t block : w.kept.blocks) {
    append_keys(set, std::max(begin, block * step), std::min(end, (block + 1) * step), w.keys);
  }
}

PanelJob job_for(const Problem& p, const Block& b, const KeySets::Set& set) {
  const Sizes& s = p.sizes;
  const int64_t q_row = (b.batch * s.q_heads + b.head) * s.q_len + b.first;
  const int64_t kv = (b.batch * s.kv_heads + b.head / p.group()) * s.k_len;
  PanelJob job{};
  job.q = p.q + q_row * s.qk_dim;
  job.y = p.y + q_row * s.v_dim;
  job.k = p.k + kv * s.qk_dim;
  job.v = p.v + kv * s.v_dim;
  job.qk_dim = s.qk_dim, job.v_dim = s.v_dim;
  job.scale = p.attributes.scale, job.softcap = p.attributes.softcap, job.sink = p.sinks[b.head];
  job.key_bias = set.log2_bias.empty() ? nullptr : set.log2_bias.data();
  if (p.row_mask()) job.mask = p.mask.at(b.batch, b.head, b.first);
  if (p.row_bias()) job.bias = p.bias.at(b.batch, b.head, b.first);
  job.mask_row = p.mask.stride[2], job.mask_key = p.mask.stride[3];
  job.bias_row = p.bias.stride[2], job.bias_key = p.bias.stride[3];
  return job;
}

// Narrows the block's job to `rows` rows and, under limits, to the keys these rows can see.
PanelJob part_of(const PanelJob& block, int64_t first, int64_t rows, const Workspace& w) {
  PanelJob job = block;
  job.rows = rows;
  job.q += first * job.qk_dim;
  job.y += first * job.v_dim;
  if (job.mask) job.mask += first * job.mask_row;
  if (job.bias) job.bias += first * job.bias_row;
  auto begin = w.keys.begin(), end = w.keys.end();
  if (!w.limits.low.empty()) {
    job.low = w.limits.low.data() + first, job.high = w.limits.high.data() + first;
    job.safe_low = job.low[rows - 1], job.safe_high = job.high[0];
    begin = std::lower_bound(begin, end, job.low[0]);
    end = std::upper_bound(begin, end, job.high[rows - 1]);
  }
  job.keys = w.keys.data() + (begin - w.keys.begin());
  job.count = end - begin;
  return job;
}

void attend_block(Call& call, int64_t item, Workspace& w) {
  const Problem& p = call.problem;
  const Block b = block_at(p, item);
  read_kept(p, b, w.kept);
  if (w.kept.wrong) return call.wrong.store(w.kept.wrong);
  set_limits(p, b, w.limits);
  const KeySets::Set& set = call.sets.of(b.batch, b.head);
  const bool residual = p.attributes.residual != Residual::none && !w.kept.everything;
  w.keys.clear();
  if (residual) {
    split_groups({p, b, w.limits, w.kept, set, call.tables.of(b.batch, b.head), call.isa, call.states.of(b)},
                 w.keys, w.pseudo);
  } else {
    list_kept(p, set, w);
  }
  const PanelJob whole = job_for(p, b, set);
  void* memory = w.panel.at_least(call.isa.scratch_bytes(p.sizes.qk_dim, p.sizes.v_dim));
  for (int64_t row = 0; row < b.rows; row += call.isa.lanes) {
    PanelJob job = part_of(whole, row, std::min(call.isa.lanes, b.rows - row), w);
    if (residual) job.pseudo = w.pseudo.view(p, b.rows, row);
    call.isa.attend(job, memory);
  }
}

// Nothing may be thrown through the runtime's thread pool.
void run_chunk(void* user, size_t index) {
  Call& call = *static_cast<Call*>(user);
  try {
    for (int64_t item = call.chunks[index]; item < call.chunks[index + 1]; ++item) {
      if (!call.wrong.load(std::memory_order_relaxed)) attend_block(call, item, workspace);
    }
  } catch (const std::bad_alloc&) {
    call.wrong.store("there is not enough memory for a work area");
  }
}

void run_table(void* user, size_t index) {
  Call& call = *static_cast<Call*>(user);
  try {
    fill_table(call.problem, call.sets, call.isa, static_cast<int64_t>(index), call.tables);
  } catch (const std::bad_alloc&) {
    call.wrong.store("there is not enough memory for the residual's means");
  }
}

void run_states(void* user, size_t index) {
  Call& call = *static_cast<Call*>(user);
  try {
    fill_states(call.problem, static_cast<int64_t>(index), call.states);
  } catch (const std::bad_alloc&) {
    call.wrong.store("there is not enough memory to look at the mask");
  }
}

// A chunk is a run of blocks of one head worth about 20 us, so that a thread keeps finding keys and values in its cache
// and the pool's cost per piece does not show.
std::vector<int64_t> cut(const Problem& p, int64_t items) {
  constexpr int64_t kEnough = 1 << 21;  // multiply-adds
  std::vector<int64_t> chunks{0};
  int64_t work = 0, blocks = p.q_blocks();
  for (int64_t item = 0; item < items; ++item) {
    if (work >= kEnough || (item % blocks == 0 && work >= kEnough / 4)) chunks.push_back(item), work = 0;
    const Block b = block_at(p, item);
    work += (estimated_keys(p, b) + 16) * b.rows * (p.sizes.qk_dim + p.sizes.v_dim);
  }
  chunks.push_back(items);
  return chunks;
}

void run(const Loop& loop, void (*body)(void*, size_t), size_t count, Call& call) {
  if (count > 1) return loop.run(loop.context, body, count, &call);
  if (count == 1) body(&call, 0);
}

}  // namespace

void attend(const Problem& p, const Isa& isa, const Loop& loop) {
  const int64_t items = p.sizes.batch * p.sizes.q_heads * p.q_blocks();
  if (items == 0 || p.sizes.v_dim == 0) return;
  Call call{p, isa, make_key_sets(p), {}, {}, {}, {}};
  if (p.attributes.residual != Residual::none) {
    call.tables = make_tables(p, call.sets);
    run(loop, run_table, call.tables.tables.size(), call);
    call.states = make_states(p);
    run(loop, run_states, static_cast<size_t>(call.states.count()), call);
  }
  call.chunks = cut(p, items);
  if (!call.wrong.load()) run(loop, run_chunk, call.chunks.size() - 1, call);
  if (call.wrong.load()) throw Failure("SparseAttention: " + std::string(call.wrong.load()) + ".");
}

}  // namespace sparsify
