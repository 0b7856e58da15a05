// Prepares what queries meet, once per key head, and cuts a call into query blocks.
#include "mass.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <string>
#include <vector>

#include "workspace.h"

namespace sparsify {

namespace {

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kSmallest = 1e-30f;  // a token whose largest component is smaller counts as zero

// What the query blocks of a call share; [key heads][stand-ins].
struct Tables {
  std::vector<float> keys;    // [..][dim]
  std::vector<float> factor;  // the step of each rounded key
  std::vector<float> addend;  // log2 of the keys behind each mean; the same for all heads
};

struct Worker {
  Arena scratch;
  std::vector<int32_t> ids, seen;
  std::vector<float> rows, steps;
  std::vector<double> sums;
};

thread_local Tables shared_tables;
thread_local Worker worker;

struct Call {
  const MassProblem& problem;
  const Isa& isa;
  Tables& tables;
  int64_t per_chunk = 1;
  std::atomic<bool> failed{false};
};

// To integers of so many levels, with one step for all components; halves to even. Gives the step.
float round_token(float* x, int64_t dim, float levels) {
  float most = kSmallest;
  for (int64_t d = 0; d < dim; ++d) most = std::max(most, std::fabs(x[d]));
  bool valid = true;
  for (int64_t d = 0; d < dim; ++d) valid &= std::isfinite(x[d]);
  if (!valid) most = std::numeric_limits<float>::quiet_NaN();
  const float factor = levels / most, magic = 12582912.0f;
  for (int64_t d = 0; d < dim; ++d) x[d] = (x[d] * factor + magic) - magic;
  return most / levels;
}

float levels_of(const MassProblem& p) { return static_cast<float>((int64_t{1} << (p.attributes.bits - 1)) - 1); }

void read_row(Element element, const void* data, int64_t at, int64_t dim, float* to) {
  for (int64_t d = 0; d < dim; ++d) to[d] = float_at(element, data, at + d);
}

// The keys of a head less their mean, rounded.
void fill_rounded(const MassProblem& p, int64_t head, Worker& w, Tables& tables) {
  const int64_t dim = p.sizes.qk_dim, count = p.sizes.k_len;
  float* rows = tables.keys.data() + head * count * dim;
  w.sums.assign(static_cast<size_t>(dim), 0.0);
  for (int64_t i = 0; i < count; ++i) {
    float* row = rows + i * dim;
    read_row(p.element, p.k, (head * count + i) * dim, dim, row);
    for (int64_t d = 0; d < dim; ++d) w.sums[d] += row[d];
  }
  for (double& sum : w.sums) sum = static_cast<float>(sum / static_cast<double>(count));
  for (int64_t i = 0; i < count; ++i) {
    float* row = rows + i * dim;
    for (int64_t d = 0; d < dim; ++d) row[d] -= static_cast<float>(w.sums[d]);
    tables.factor[head * count + i] = round_token(row, dim, levels_of(p));
  }
}

// The mean key of every block, times what makes a product with it a logit in log2 units.
void fill_means(const MassProblem& p, const Isa& isa, int64_t head, Worker& w, Tables& tables) {
  const int64_t dim = p.sizes.qk_dim, length = p.sizes.k_len, step = p.attributes.k_block;
  const void* keys = element_at(p.element, p.k, head * length * dim);
  w.ids.resize(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) w.ids[i] = static_cast<int32_t>(i);
  for (int64_t block = 0; block < p.k_blocks(); ++block) {
    const int64_t first = block * step, count = std::min(step, length - first);
    float* mean = tables.keys.data() + (head * p.k_blocks() + block) * dim;
    isa.moments({p.element, keys, dim, w.ids.data() + first, count, nullptr}, mean);
    const float factor = p.attributes.scale / static_cast<float>(count) * kLog2e;
    for (int64_t d = 0; d < dim; ++d) mean[d] *= factor;
  }
}

void size_tables(const MassProblem& p, Tables& tables) {
  const int64_t heads = p.sizes.batch * p.sizes.kv_heads, count = p.stand_ins();
  tables.keys.resize(static_cast<size_t>(heads * count * p.sizes.qk_dim));
  if (p.rounds()) {
    tables.factor.resize(static_cast<size_t>(heads * count));
    return;
  }
  tables.addend.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t keys = std::min(p.attributes.k_block, p.sizes.k_len - i * p.attributes.k_block);
    tables.addend[i] = std::log2(static_cast<float>(keys));
  }
}

// Nothing may be thrown through the runtime's thread pool.
template <class Body>
void guarded(Call& call, const Body& body) {
  try {
    body();
  } catch (const std::exception&) {  // bad_alloc, or length_error of a vector
    call.failed.store(true);
  }
}

void run_table(void* user, size_t index) {
  Call& call = *static_cast<Call*>(user);
  guarded(call, [&] {
    const auto head = static_cast<int64_t>(index);
    if (call.problem.rounds()) fill_rounded(call.problem, head, worker, call.tables);
    else fill_means(call.problem, call.isa, head, worker, call.tables);
  });
}

// How many stand-ins each row sees: a prefix, as queries see keys up to their position.
void list_seen(const MassProblem& p, int64_t batch, int64_t first, int64_t rows, std::vector<int32_t>& seen) {
  const int64_t offset = p.offsets ? p.offsets.data[batch * p.offsets.stride[0]] : 0;
  const int64_t last_key = p.sizes.k_len - 1, step = p.rounds() ? 1 : p.attributes.k_block;
  seen.resize(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    // compared before they are added up: an offset may be any number
    const int64_t row = first + i;
    const int64_t position = offset > last_key - row ? last_key : std::max<int64_t>(0, row + offset);
    seen[i] = static_cast<int32_t>(position / step + 1);
  }
}

// The queries of a block as integers in floats, and each row's factor on its products.
void round_queries(const MassProblem& p, int64_t at, int64_t rows, Worker& w) {
  const int64_t dim = p.sizes.qk_dim;
  w.rows.resize(static_cast<size_t>(rows * dim));
  w.steps.resize(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    float* row = w.rows.data() + i * dim;
    read_row(p.element, p.q, (at + i) * dim, dim, row);
    w.steps[i] = round_token(row, dim, levels_of(p)) * p.attributes.scale * kLog2e;
  }
}

void predict_block(const Call& call, int64_t item, Worker& w) {
  const MassProblem& p = call.problem;
  const Sizes& s = p.sizes;
  const int64_t block = item % p.q_blocks(), head = item / p.q_blocks(), batch = head / s.q_heads;
  const int64_t first = block * p.attributes.q_block, rows = std::min(p.attributes.q_block, s.q_len - first);
  const int64_t kv = batch * s.kv_heads + head % s.q_heads / (s.q_heads / s.kv_heads), at = head * s.q_len + first;
  MassJob job{};
  job.element = p.element, job.q = element_at(p.element, p.q, at * s.qk_dim);
  job.rows = rows, job.dim = s.qk_dim;
  job.count = p.stand_ins(), job.group = p.rounds() ? p.attributes.k_block : 1;
  job.keys = call.tables.keys.data() + kv * job.count * s.qk_dim;
  if (p.rounds()) {
    round_queries(p, at, rows, w);
    job.element = Element::f32, job.q = w.rows.data(), job.row_factor = w.steps.data();
    job.key_factor = call.tables.factor.data() + kv * job.count;
  } else {
    job.key_addend = call.tables.addend.data();
  }
  if (p.attributes.causal) list_seen(p, batch, first, rows, w.seen), job.seen = w.seen.data();
  job.mass = p.mass + item * p.k_blocks();
  if (p.spread) job.spread = p.spread + item * p.k_blocks();
  call.isa.mass(job, w.scratch.at_least(call.isa.mass_bytes(job)));
}

void run_chunk(void* user, size_t index) {
  Call& call = *static_cast<Call*>(user);
  const MassProblem& p = call.problem;
  guarded(call, [&] {
    const int64_t items = p.sizes.batch * p.sizes.q_heads * p.q_blocks();
    const int64_t first = static_cast<int64_t>(index) * call.per_chunk;
    for (int64_t i = first; i < std::min(items, first + call.per_chunk); ++i) predict_block(call, i, worker);
  });
}

void run(const Loop& loop, void (*body)(void*, size_t), int64_t count, Call& call) {
  loop.run(loop.context, body, static_cast<size_t>(count), &call);
  if (call.failed.load()) throw Failure("there is not enough memory for a work area.");
}

}  // namespace

void predict_mass(const MassProblem& p, const Isa& isa, const Loop& loop) {
  constexpr int64_t kEnough = 1 << 21;  // multiply-adds of a piece, as in attention.cpp
  const Sizes& s = p.sizes;
  if (product(s.batch, s.q_heads, p.q_blocks(), p.k_blocks()) == 0) return;
  const int64_t items = s.batch * s.q_heads * p.q_blocks();
  Call call{p, isa, shared_tables};
  size_tables(p, call.tables);
  run(loop, run_table, s.batch * s.kv_heads, call);
  const int64_t rows = std::min(p.attributes.q_block, s.q_len);
  const int64_t work = std::max<int64_t>(1, rows * p.stand_ins() * (s.qk_dim + 16));
  call.per_chunk = std::max<int64_t>(1, kEnough / work);
  run(loop, run_chunk, (items + call.per_chunk - 1) / call.per_chunk, call);
}

}  // namespace sparsify
