// Cuts a call into query blocks, groups blocks into chunks of similar work and runs them.
#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "workspace.h"

namespace sparsify {

namespace {

thread_local Workspace workspace;
thread_local Shared shared_by_call;

struct Call {
  const Problem& problem;
  const Isa& isa;
  Shared& shared;
  int64_t together = 1;  // heads of a group in one block
  int64_t slices = 1;    // pieces of the keys, for few rows and many keys
  int64_t items = 0;     // blocks times slices
  std::atomic<const char*> wrong{nullptr};
};

struct Slice {
  int64_t index, count;
};

// The keys that the slice of the block computes.
void list_kept(const Problem& p, const KeySets::Set& set, const Slice& slice, Workspace& w) {
  const int64_t first = w.limits.any_low, span = std::max<int64_t>(w.limits.any_high + 1 - first, 0);
  const int64_t begin = first + span * slice.index / slice.count, step = p.attributes.k_block;
  const int64_t end = first + span * (slice.index + 1) / slice.count;
  if (w.kept.everything) return append_keys(set, begin, end, w.keys);
  for (int64_t block : w.kept.blocks) {
    append_keys(set, std::max(begin, block * step), std::min(end, (block + 1) * step), w.keys);
  }
}

// Rows one after another: of every head of the block, its queries.
void list_queries(const Problem& p, const Block& b, const Slice& slice, Workspace& w) {
  const Sizes& s = p.sizes;
  const int64_t q_bytes = s.qk_dim * bytes_of(p.element), y_bytes = s.v_dim * bytes_of(p.element);
  const bool masked = p.row_mask(), biased = p.row_bias(), limited = !w.limits.low.empty();
  w.rows.resize(static_cast<size_t>(b.heads * b.rows));
  Row* row = w.rows.data();
  for (int64_t head = b.head; head < b.head + b.heads; ++head) {
    const int64_t at = (b.batch * s.q_heads + head) * s.q_len + b.first;
    const float sink = slice.index == 0 ? p.sink(head) : -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < b.rows; ++i, ++row) {
      row->q = static_cast<const char*>(p.q) + (at + i) * q_bytes;
      row->y = static_cast<char*>(p.y) + (at + i) * y_bytes;
      row->mask = masked ? p.mask.at(b.batch, head, b.first + i) : nullptr;
      row->bias = biased ? p.bias_at(b.batch, head, b.first + i) : nullptr;
      if (limited) row->low = w.limits.low[i], row->high = w.limits.high[i];
      row->sink = sink;
    }
  }
}

PanelJob job_for(const Problem& p, const Block& b, const KeySets::Set& set, const Workspace& w) {
  const Sizes& s = p.sizes;
  const int64_t kv = (b.batch * s.kv_heads + b.head / p.group()) * s.k_len;
  PanelJob job{};
  job.element = p.element;
  job.k = element_at(p.element, p.k, kv * s.qk_dim);
  job.v = element_at(p.element, p.v, kv * s.v_dim);
  job.qk_dim = s.qk_dim, job.v_dim = s.v_dim;
  job.rows = w.rows.data(), job.row_count = static_cast<int64_t>(w.rows.size());
  job.keys = w.keys.data(), job.count = static_cast<int64_t>(w.keys.size());
  job.scale = p.attributes.scale, job.softcap = p.attributes.softcap;
  job.key_bias = set.log2_bias.empty() ? nullptr : set.log2_bias.data();
  job.limited = !w.limits.low.empty(), job.masked = p.row_mask(), job.biased = p.row_bias();
  job.mask_key = p.mask.stride[3], job.bias_key = p.bias.stride[3];
  return job;
}

// The most rows a block has when it holds so many heads.
int64_t rows_of(const Problem& p, int64_t together) { return together * std::min(p.row_block(), p.sizes.q_len); }

int64_t part_floats(const Call& call) {
  return rows_of(call.problem, call.together) * (call.problem.sizes.v_dim + 2);
}

Part part_of(const Call& call, int64_t item) {
  const int64_t rows = rows_of(call.problem, call.together);
  float* y = call.shared.parts.data() + item * part_floats(call);
  float* top = y + rows * call.problem.sizes.v_dim;
  return {y, top, top + rows};
}

void attend_item(Call& call, int64_t item, Workspace& w) {
  const Problem& p = call.problem;
  const Slice slice{item % call.slices, call.slices};
  const Block b = block_at(p, call.together, item / call.slices);
  read_kept(p, b, w.kept);
  if (w.kept.wrong) return call.wrong.store(w.kept.wrong);
  set_limits(p, b, w.limits);
  const KeySets::Set& set = call.shared.sets.of(b.batch, b.head);
  const bool residual = p.attributes.residual != Residual::none && !w.kept.everything;
  w.keys.clear();
  if (residual) {
    const GroupStats& stats = call.shared.tables.of(b.batch, b.head);
    split_groups({p, b, w.limits, w.kept, set, stats, call.isa, call.shared.states.of(b)}, w.keys, w.pseudo);
  } else {
    list_kept(p, set, slice, w);
  }
  list_queries(p, b, slice, w);
  PanelJob job = job_for(p, b, set, w);
  if (residual) job.pseudo = w.pseudo.view(p, b.rows);
  Part part{};
  if (call.slices > 1) part = part_of(call, item), job.part = &part;
  call.isa.attend(job, w.panel.at_least(call.isa.scratch_bytes(job)));
}

// Nothing may be thrown through the runtime's thread pool.
template <class Body>
void guarded(Call& call, const char* sentence, const Body& body) {
  try {
    body();
  } catch (const std::exception&) {  // bad_alloc, or length_error of a vector
    call.wrong.store(sentence);
  }
}

void run_chunk(void* user, size_t index) {
  Call& call = *static_cast<Call*>(user);
  const std::vector<int64_t>& chunks = call.shared.chunks;
  guarded(call, "there is not enough memory for a work area", [&] {
    for (int64_t item = chunks[index]; item < chunks[index + 1]; ++item) {
      if (!call.wrong.load(std::memory_order_relaxed)) attend_item(call, item, workspace);
    }
  });
}

void run_table(void* user, size_t index) {
  Call& call = *static_cast<Call*>(user);
  guarded(call, "there is not enough memory for the residual's means", [&] {
    fill_table(call.problem, call.shared.sets, call.isa, static_cast<int64_t>(index), workspace.keys,
               workspace.pseudo.sums, call.shared.tables);
  });
}

void run_states(void* user, size_t index) {
  Call& call = *static_cast<Call*>(user);
  guarded(call, "there is not enough memory to look at the mask",
          [&] { fill_states(call.problem, static_cast<int64_t>(index), workspace.seen, call.shared.states); });
}

void run(const Loop& loop, void (*body)(void*, size_t), size_t count, Call& call) {
  if (count > 1) return loop.run(loop.context, body, count, &call);
  if (count == 1) body(&call, 0);
}

// Heads of a group that see the same keys stand in one block while that fills no more than a panel or two: when rows
// are few, the time goes into reading keys and values, and so they are read once.
int64_t heads_together(const Problem& p, const KeySets& sets) {
  constexpr int64_t kRows = 64;
  const bool same_list = !p.counts || (p.counts.stride[1] == 0 && p.indices.stride[1] == 0);
  if (!same_list || sets.head_step || p.attributes.residual != Residual::none) return 1;
  return std::max<int64_t>(1, std::min(p.group(), kRows / rows_of(p, 1)));
}

// With few rows and fewer blocks than a machine has cores, a block's keys are cut as well. It depends on sizes alone:
// the same call gives the same bits on any number of threads.
int64_t slices_of(const Problem& p, int64_t together, int64_t blocks) {
  constexpr int64_t kRows = 16, kItems = 16, kKeys = 1024;
  if (p.attributes.residual != Residual::none || rows_of(p, together) > kRows) return 1;
  return std::max<int64_t>(1, std::min(kItems / blocks, p.sizes.k_len / kKeys));
}

// A chunk is a run of items worth about 20 us, so that a thread keeps finding keys and values in its cache and the
// pool's cost per piece does not show.
void cut(Call& call) {
  constexpr int64_t kEnough = 1 << 21;  // multiply-adds
  constexpr int64_t kFewRows = 8;       // fewer rows cost as many: then reading the keys is the work
  const Problem& p = call.problem;
  const int64_t together = call.together, per_head = call.items / (p.sizes.batch * p.sizes.kv_heads);
  call.shared.chunks.assign(1, 0);
  int64_t work = 0;
  for (int64_t item = 0; item < call.items; ++item) {
    if (work >= kEnough || (item % per_head == 0 && work >= kEnough / 4)) call.shared.chunks.push_back(item), work = 0;
    const Block b = block_at(p, together, item / call.slices);
    const int64_t keys = estimated_keys(p, b) / call.slices + 16;
    work += keys * std::max(b.rows * b.heads, kFewRows) * (p.sizes.qk_dim + p.sizes.v_dim);
  }
  call.shared.chunks.push_back(call.items);
}

// Merges the slices of one row as if one softmax had seen all its keys.
void merge_row(const Call& call, int64_t block, int64_t row, float* sum, void* y) {
  const int64_t dim = call.problem.sizes.v_dim, first = block * call.slices;
  float top = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t i = 0; i < call.slices; ++i) top = std::max(top, part_of(call, first + i).top[row]);
  std::fill(sum, sum + dim, 0.0f);
  for (int64_t i = 0; i < call.slices; ++i) {
    const Part part = part_of(call, first + i);
    const float weight = std::isinf(top) && top < 0 ? 1.0f : std::exp2(part.top[row] - top);
    if (part.total[row] == 0) continue;
    total += weight * part.total[row];
    for (int64_t d = 0; d < dim; ++d) sum[d] += weight * part.y[row * dim + d];
  }
  for (int64_t d = 0; d < dim; ++d) sum[d] = total == 0 ? 0.0f : sum[d] / total;
  call.isa.from_float(call.problem.element, sum, y, dim);
}

void merge(const Call& call) {
  Workspace& w = workspace;
  float* sum = static_cast<float*>(w.panel.at_least(static_cast<size_t>(call.problem.sizes.v_dim) * sizeof(float)));
  for (int64_t block = 0; block < call.items / call.slices; ++block) {
    w.limits.low.clear();
    list_queries(call.problem, block_at(call.problem, call.together, block), {0, 1}, w);
    for (size_t row = 0; row < w.rows.size(); ++row) {
      merge_row(call, block, static_cast<int64_t>(row), sum, w.rows[row].y);
    }
  }
}

void run_residual(Call& call, const Loop& loop) {
  size_tables(call.problem, call.shared.sets, call.shared.tables);
  run(loop, run_table, static_cast<size_t>(call.shared.tables.count), call);
  size_states(call.problem, call.shared.states);
  run(loop, run_states, static_cast<size_t>(call.shared.states.count()), call);
}

}  // namespace

void attend(const Problem& p, const Isa& isa, const Loop& loop) {
  if (product(p.sizes.batch, p.sizes.q_heads, p.sizes.q_len, p.sizes.v_dim) == 0) return;
  Call call{p, isa, shared_by_call};
  fill_key_sets(p, call.shared.sets);
  if (p.attributes.residual != Residual::none) run_residual(call, loop);
  call.together = heads_together(p, call.shared.sets);
  const int64_t parts = (p.group() + call.together - 1) / call.together;
  const int64_t blocks = p.sizes.batch * p.sizes.kv_heads * p.q_blocks() * parts;
  call.slices = slices_of(p, call.together, blocks);
  call.items = blocks * call.slices;
  if (call.slices > 1) call.shared.parts.resize(static_cast<size_t>(call.items * part_floats(call)));
  cut(call);
  if (!call.wrong.load()) run(loop, run_chunk, call.shared.chunks.size() - 1, call);
  if (call.wrong.load()) throw Failure(std::string(call.wrong.load()) + ".");
  if (call.slices > 1) merge(call);
}

}  // namespace sparsify
