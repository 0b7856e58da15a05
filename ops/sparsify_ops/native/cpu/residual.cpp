// Splits a query block's keys into those computed exactly and those that answer through their group's means.
#include "residual.h"

#include <algorithm>
#include <cmath>

namespace sparsify {

namespace {

struct Means {
  float* k;
  float* v;
  float squares;
};

// Two passes: the mean, then the squared distances from it.
void means_of(const Problem& p, const Isa& isa, const void* k, const void* v, const std::vector<int32_t>& keys,
              std::vector<float>& sums, Means& out) {
  const int64_t d = p.sizes.qk_dim, dv = p.sizes.v_dim, n = static_cast<int64_t>(keys.size());
  const float share = 1.0f / static_cast<float>(n);
  isa.moments({p.element, k, d, keys.data(), n, nullptr}, out.k);
  for (int64_t i = 0; i < d; ++i) out.k[i] *= share;
  isa.moments({p.element, v, dv, keys.data(), n, nullptr}, out.v);
  for (int64_t i = 0; i < dv; ++i) out.v[i] *= share;
  out.squares = 0;
  if (p.attributes.residual != Residual::iso) return;
  sums.resize(std::max(d, dv));
  out.squares = isa.moments({p.element, k, d, keys.data(), n, out.k}, sums.data());
}

// The group's means without a few keys. Sums of distances from the full mean keep the subtraction accurate.
void means_without(const BlockContext& c, const void* k, const void* v, int64_t group, int64_t n,
                   std::vector<int32_t>& removed, std::vector<float>& sums, Means& out) {
  const int64_t d = c.problem.sizes.qk_dim, dv = c.problem.sizes.v_dim, gone = static_cast<int64_t>(removed.size());
  const float share = 1.0f / static_cast<float>(n);
  const float* k_mean = c.stats.k_mean.data() + group * d;
  const float* v_mean = c.stats.v_mean.data() + group * dv;
  sums.resize(std::max(d, dv));
  const Element element = c.problem.element;
  out.squares = c.stats.squares[group] - c.isa.moments({element, k, d, removed.data(), gone, k_mean}, sums.data());
  for (int64_t i = 0; i < d; ++i) {
    const float moved = -sums[i] * share;
    out.k[i] = k_mean[i] + moved;
    out.squares -= static_cast<float>(n) * moved * moved;
  }
  c.isa.moments({element, v, dv, removed.data(), gone, v_mean}, sums.data());
  for (int64_t i = 0; i < dv; ++i) out.v[i] = v_mean[i] - sums[i] * share;
}

const void* keys_of(const Problem& p, const Block& b) {
  const int64_t head = b.batch * p.sizes.kv_heads + b.head / p.group();
  return element_at(p.element, p.k, head * p.sizes.k_len * p.sizes.qk_dim);
}
const void* values_of(const Problem& p, const Block& b) {
  const int64_t head = b.batch * p.sizes.kv_heads + b.head / p.group();
  return element_at(p.element, p.v, head * p.sizes.k_len * p.sizes.v_dim);
}

// `n` keys are left, whose squared distances from their mean add up to `squares`.
Pseudo pseudo_of(const Problem& p, int64_t n, float bias, float squares) {
  Pseudo out{std::log2(static_cast<float>(n)) + bias, 0, 0};
  if (p.attributes.residual != Residual::iso) return out;
  const float variance = squares / static_cast<float>(n * std::max<int64_t>(p.sizes.qk_dim, 1));
  out.deviation = std::sqrt(variance < 0 ? 0.0f : variance);
  out.slope = std::sqrt(2.88539008177792681f * static_cast<float>(n - 1));
  return out;
}

void add_pseudo(const BlockContext& c, const Pseudo& pseudo, const float* k, const float* v, PseudoList& out) {
  const Problem& p = c.problem;
  const size_t at = out.count++;
  out.k[at] = k, out.v[at] = v;
  out.addend[at] = pseudo.addend, out.deviation[at] = pseudo.deviation, out.slope[at] = pseudo.slope;
  if (!p.row_bias()) return;
  out.biased.insert(out.biased.end(), out.left.begin(), out.left.end());
  out.ends.push_back(static_cast<int32_t>(out.biased.size()));
}

// Of all pseudo-keys at once: along the keys of a few rows memory is read faster than along the rows of a group.
void add_row_biases(const BlockContext& c, PseudoList& out) {
  const Problem& p = c.problem;
  out.row_addend.resize(out.count * static_cast<size_t>(c.block.rows));
  c.isa.row_biases({p.element, p.bias_at(c.block.batch, c.block.head, c.block.first), p.bias.stride[2],
                    p.bias.stride[3], c.block.rows, out.biased.data(), out.ends.data(),
                    static_cast<int64_t>(out.count)},
                   out.row_addend.data());
}

// The bias that all rows share, over a set of keys.
float shared_bias(const Isa& isa, const KeySets::Set& set, const std::vector<int32_t>& keys) {
  if (set.key_bias.empty()) return 0.0f;
  float out = 0;
  const int32_t end = static_cast<int32_t>(keys.size());
  isa.row_biases({Element::f32, set.key_bias.data(), 0, 1, 1, keys.data(), &end, 1}, &out);
  return out;
}

// What is left of a group of which something is gone.
void add_partial(const BlockContext& c, int64_t group, int64_t n, PseudoList& out) {
  const int64_t d = c.problem.sizes.qk_dim, dv = c.problem.sizes.v_dim;
  Means means{out.rows.data() + out.used, out.rows.data() + out.used + d, 0};
  out.used += d + dv;
  const void* k = keys_of(c.problem, c.block);
  const void* v = values_of(c.problem, c.block);
  if (n > 2 && static_cast<int64_t>(out.removed.size()) <= n) {
    means_without(c, k, v, group, n, out.removed, out.sums, means);
  } else {
    means_of(c.problem, c.isa, k, v, out.left, out.sums, means);
  }
  const Pseudo pseudo = pseudo_of(c.problem, n, shared_bias(c.isa, c.set, out.left), means.squares);
  add_pseudo(c, pseudo, means.k, means.v, out);
}

// Few left keys, and biases, ask which keys are left; otherwise it is enough to know which are gone.
bool needs_left(const BlockContext& c, int64_t n, const PseudoList& out) {
  return n <= 2 || static_cast<int64_t>(out.removed.size()) > n || !c.set.key_bias.empty() || c.problem.row_bias();
}

void add_whole(const BlockContext& c, int64_t group, PseudoList& out) {
  add_pseudo(c, c.stats.pseudo[group], c.stats.k_mean.data() + group * c.problem.sizes.qk_dim,
             c.stats.v_mean.data() + group * c.problem.sizes.v_dim, out);
}

void add_left(const BlockContext& c, int64_t group, int64_t n, PseudoList& out) {
  if (n == 0) return;
  if (n < c.stats.count[group]) return add_partial(c, group, n, out);
  add_whole(c, group, out);
}

// How the block's rows see a key, from the limits alone or from the table made beforehand.
State state_of(const BlockContext& c, int64_t key) {
  if (!c.set.dead.empty() && c.set.dead[key]) return forbidden;
  if (c.states) return static_cast<State>(c.states[key]);
  if (key < c.limits.any_low || key > c.limits.any_high) return forbidden;
  return key >= c.limits.all_low && key <= c.limits.all_high ? allowed : mixed;
}

// One group and the kept blocks inside it.
struct Group {
  int64_t index, begin, end;
  const int32_t* kept;
  const int32_t* kept_end;
};

bool is_kept(const Problem& p, const Group& g, int64_t key, const int32_t*& at) {
  const int64_t step = p.attributes.k_block;
  while (at != g.kept_end && (*at + 1) * step <= key) ++at;
  return at != g.kept_end && *at * step <= key;
}

// A group where masks play a part: every key is looked at.
void split_masked(const BlockContext& c, const Group& g, std::vector<int32_t>& keys, PseudoList& out) {
  out.state.resize(g.end - g.begin);
  bool any_mixed = false;
  for (int64_t key = g.begin; key < g.end; ++key) {
    out.state[key - g.begin] = state_of(c, key);
    any_mixed |= out.state[key - g.begin] == mixed;
  }
  const int32_t* at = g.kept;
  const int64_t length = c.problem.key_length(c.block.batch);
  for (int64_t key = g.begin; key < g.end; ++key) {
    const bool kept = is_kept(c.problem, g, key, at), seen = out.state[key - g.begin] != forbidden;
    const bool counted = key < length && (c.set.dead.empty() || !c.set.dead[key]);
    if (seen && (kept || any_mixed)) keys.push_back(static_cast<int32_t>(key));
    if (any_mixed) continue;
    if (seen && !kept) out.left.push_back(static_cast<int32_t>(key));
    else if (counted) out.removed.push_back(static_cast<int32_t>(key));
  }
  add_left(c, g.index, static_cast<int64_t>(out.left.size()), out);
}

// The group's keys that are not among the removed ones.
void list_left(const BlockContext& c, const Group& g, PseudoList& out) {
  append_keys(c.set, g.begin, g.end, out.left);
  auto gone = out.removed.begin();
  auto is_gone = [&](int32_t key) { return gone != out.removed.end() && *gone == key && (++gone, true); };
  out.left.erase(std::remove_if(out.left.begin(), out.left.end(), is_gone), out.left.end());
}

// A group that every row sees whole: only the kept keys are looked at.
void split_open(const BlockContext& c, const Group& g, std::vector<int32_t>& keys, PseudoList& out) {
  const Problem& p = c.problem;
  const size_t before = keys.size();
  for (const int32_t* at = g.kept; at != g.kept_end; ++at) {
    const int64_t begin = *at * p.attributes.k_block;
    append_keys(c.set, begin, std::min(begin + p.attributes.k_block, g.end), keys);
  }
  if (p.attributes.k_block > 1 && keys.size() > before) return;
  out.removed.assign(keys.begin() + static_cast<int64_t>(before), keys.end());
  const int64_t n = c.stats.count[g.index] - static_cast<int64_t>(out.removed.size());
  if (!out.removed.empty() && needs_left(c, n, out)) list_left(c, g, out);
  add_left(c, g.index, n, out);
}

void start(const Problem& p, int64_t groups, PseudoList& out) {
  const size_t most = static_cast<size_t>(groups);
  out.count = 0;
  if (out.k.size() < most) {
    out.k.resize(most), out.v.resize(most), out.addend.resize(most), out.deviation.resize(most), out.slope.resize(most);
  }
  out.used = 0;
  out.biased.clear(), out.ends.clear();
  const size_t needed = static_cast<size_t>(groups * (p.sizes.qk_dim + p.sizes.v_dim));
  if (out.rows.size() < needed) out.rows.resize(needed);
}

}  // namespace

PseudoKeys PseudoList::view(const Problem& p, int64_t rows_in_block) const {
  PseudoKeys out{};
  out.count = static_cast<int64_t>(count);
  out.k = k.data();
  out.v = v.data();
  out.addend = addend.data();
  if (p.row_bias()) out.row_addend = row_addend.data();
  out.row_stride = rows_in_block;
  if (p.attributes.residual == Residual::iso) out.deviation = deviation.data(), out.slope = slope.data();
  return out;
}

void size_tables(const Problem& p, const KeySets& sets, ResidualTables& all) {
  all.heads = sets.head_step ? p.sizes.q_heads : p.sizes.kv_heads;
  all.heads_per_table = p.sizes.q_heads / all.heads;
  all.count = p.sizes.batch * all.heads;
  if (static_cast<int64_t>(all.tables.size()) < all.count) all.tables.resize(all.count);
}

void fill_table(const Problem& p, const KeySets& sets, const Isa& isa, int64_t index, std::vector<int32_t>& keys,
                std::vector<float>& sums, ResidualTables& all) {
  const int64_t g = p.residual_group(), groups = (p.sizes.k_len + g - 1) / g, d = p.sizes.qk_dim, dv = p.sizes.v_dim;
  Block b{};
  b.batch = index / all.heads;
  b.head = index % all.heads * all.heads_per_table;
  const KeySets::Set& set = sets.of(b.batch, b.head);
  GroupStats& out = all.tables[index];
  out.k_mean.resize(groups * d), out.v_mean.resize(groups * dv), out.squares.resize(groups), out.count.resize(groups);
  out.pseudo.resize(groups);
  for (int64_t i = 0; i < groups; ++i) {
    keys.clear();
    append_keys(set, i * g, std::min<int64_t>(i * g + g, p.key_length(b.batch)), keys);
    out.count[i] = static_cast<int32_t>(keys.size());
    if (keys.empty()) continue;
    Means means{out.k_mean.data() + i * d, out.v_mean.data() + i * dv, 0};
    means_of(p, isa, keys_of(p, b), values_of(p, b), keys, sums, means);
    out.squares[i] = means.squares;
    out.pseudo[i] = pseudo_of(p, out.count[i], shared_bias(isa, set, keys), means.squares);
  }
}

void split_groups(const BlockContext& c, std::vector<int32_t>& keys, PseudoList& out) {
  const Problem& p = c.problem;
  const int64_t g = p.residual_group(), length = p.key_length(c.block.batch), groups = (length + g - 1) / g;
  start(p, groups, out);
  const bool elements = c.states != nullptr;
  const int32_t* at = c.kept.blocks.data();
  const int32_t* stop = at + c.kept.blocks.size();
  for (int64_t i = 0; i < groups; ++i) {
    Group group{i, i * g, std::min(i * g + g, length), at, at};
    while (group.kept_end != stop && *group.kept_end * p.attributes.k_block < group.end) ++group.kept_end;
    at = group.kept_end;
    if (group.begin > c.limits.any_high || group.end <= c.limits.any_low) continue;
    const bool open = !elements && group.begin >= c.limits.all_low && group.end - 1 <= c.limits.all_high;
    if (open && group.kept == group.kept_end) {  // most groups
      if (c.stats.count[i]) add_whole(c, i, out);
      continue;
    }
    out.left.clear(), out.removed.clear();
    open ? split_open(c, group, keys, out) : split_masked(c, group, keys, out);
  }
  if (p.row_bias()) add_row_biases(c, out);
}

}  // namespace sparsify
