// A handful of query rows, as when a language model decodes: reading the keys is what takes time, so the lanes are the
// components of a head, and every key row is read as it lies in memory. Scores lie as [row][key].

constexpr int64_t kFewRows = kWidth / 2;  // with more, rows in the lanes compute less
constexpr int64_t kRowScores = kGroup + kWidth;

struct FewScratch {
  float *q, *out, *scores, *extras;  // [row][whole vectors], likewise, [row][kRowScores], [kRowScores]
  Group group;
};

struct FewState {
  float top[kFewRows], total[kFewRows];
};

static size_t few_bytes(const PanelJob& job) {
  const int64_t rows = kFewRows * (whole(job.qk_dim) + whole(job.v_dim) + kRowScores) + kRowScores;
  return (size_t)(rows + group_floats(job, true)) * 4 + 2 * kListed * sizeof(float*);
}

INLINE FewScratch carve_few(const PanelJob& job, void* memory) {
  FewScratch s;
  float* at = static_cast<float*>(memory);
  s.q = at, at += kFewRows * whole(job.qk_dim);
  s.out = at, at += kFewRows * whole(job.v_dim);
  s.scores = at, at += kFewRows * kRowScores;
  s.extras = at, at += kRowScores;
  carve_group(job, true, at, s.group);
  return s;
}

INLINE float largest(vf x) {
  float top = x[0];
  for (int i = 1; i < kWidth; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

// Products of one query row with kWidth key rows. Adding up the transposed sums costs less than adding across each.
INLINE vf dot_rows(const float* const* keys, const float* q, int64_t dim) {
  vf sum[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) sum[i] = vf{};
  for (int64_t d = 0; d < dim; d += kWidth) {
    const vf x = load(q + d);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) sum[i] += load(keys[i] + d) * x;
  }
  transpose(sum);
#pragma GCC unroll 4
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
  }
  return sum[0];
}

// out[d...] = keep * out + sum over keys of weight * value row, for T vectors; two sums hide the latency of one.
template <int T>
INLINE void add_rows(const float* const* values, const float* weights, int64_t count, float keep, float* out,
                     int64_t d) {
  vf even[T], odd[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) even[t] = load(out + d + t * kWidth) * keep, odd[t] = vf{};
  int64_t key = 0;
  for (; key + 1 < count; key += 2) {
    const float *a = values[key] + d, *b = values[key + 1] + d;
    const vf x = splat(weights[key]), y = splat(weights[key + 1]);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) even[t] += load(a + t * kWidth) * x, odd[t] += load(b + t * kWidth) * y;
  }
  if (key < count) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) even[t] += load(values[key] + d + t * kWidth) * weights[key];
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) store(out + d + t * kWidth, even[t] + odd[t]);
}

INLINE void add_all_rows(const float* const* values, const float* weights, int64_t count, float keep, float* out,
                         int64_t dim) {
  int64_t d = 0;
  for (; d + 4 * kWidth <= dim; d += 4 * kWidth) add_rows<4>(values, weights, count, keep, out, d);
  for (; d < dim; d += kWidth) add_rows<1>(values, weights, count, keep, out, d);
}

// What may happen to a row's scores of up to kWidth keys before the softmax; scores behind the list become -inf.
INLINE vf change_row(const PanelJob& job, const Row& row, const int32_t* keys, int64_t count, float cap, vf x) {
  if (count >= kWidth && !job.key_bias && !job.masked && !job.biased && !job.limited && cap == 0) return x;
  vi key = vi{} + keys[0], real = vi{};
  for (int i = 0; i < kWidth; ++i) real[i] = i < count ? -1 : 0;
  for (int64_t i = 1; i < count; ++i) key[i] = keys[i];
  if (cap > 0) x = soften(x, cap);
  if (job.key_bias) {
    for (int64_t i = 0; i < count; ++i) x[i] += job.key_bias[keys[i]];
  }
  if (job.masked || job.biased) {
    x = add_extra(x, row_extras(job, row, keys, count, is_run(keys, count)));
  }
  if (job.limited) x = choose((key >= row.low) & (key <= row.high), x, splat(-kInf));
  return choose(real, x, splat(-kInf));
}

// Scores of a group of keys for one row, and their maximum.
INLINE float score_row(const PanelJob& job, const FewScratch& s, int64_t row, const int32_t* keys, int64_t count,
                       float cap) {
  float* scores = s.scores + row * kRowScores;
  vf top = splat(-kInf);
  for (int64_t at = 0; at < count; at += kWidth) {
    if (row == 0 && !s.group.key_rows) {
      for (int64_t i = 0; i < kWidth; ++i) {
        fetch_row(reinterpret_cast<const char*>(s.group.keys[at + i + 2 * kWidth]), job.qk_dim * 4);
        fetch_row(reinterpret_cast<const char*>(s.group.values[at + i]), job.v_dim * 4);
      }
    }
    vf x = dot_rows(s.group.keys + at, s.q + row * whole(job.qk_dim), whole(job.qk_dim));
    x = change_row(job, job.rows[row], keys + at, count - at < kWidth ? count - at : kWidth, cap, x);
    store(scores + at, x);
    top = larger(x, top);
  }
  return largest(top);
}

// Takes a row's scores into its running softmax and output.
INLINE void fold_row(const PanelJob& job, const FewScratch& s, int64_t row, int64_t count, float top,
                     FewState& state) {
  float* scores = s.scores + row * kRowScores;
  const float before = state.top[row], now = top > before ? top : before;
  const vf base = splat(now == -kInf ? 0.0f : now);
  vf total = vf{};
  for (int64_t at = 0; at < count; at += kWidth) {
    const vf w = exp2v(load(scores + at) - base);
    store(scores + at, w);
    total += w;
  }
  const float keep = exp2v(splat(before) - base)[0];
  state.top[row] = now;
  state.total[row] = state.total[row] * keep + sum_of(total);
  add_all_rows(s.group.values, scores, count, keep, s.out + row * whole(job.v_dim), whole(job.v_dim));
}

static void start_few(const PanelJob& job, const FewScratch& s, float factor, FewState& state) {
  for (int64_t row = 0; row < job.row_count; ++row) {
    start_row(job.rows[row].sink, state.top[row], state.total[row]);
    float* q = s.q + row * whole(job.qk_dim);
    widen_row(job.element, job.rows[row].q, job.qk_dim, q);
    for (int64_t d = 0; d < job.qk_dim; d += kWidth) store(q + d, load(q + d) * factor);
    for (int64_t d = 0; d < job.v_dim; d += kWidth) store(s.out + row * whole(job.v_dim) + d, vf{});
  }
}

static void finish_few(const PanelJob& job, const FewScratch& s, const FewState& state) {
  for (int64_t row = 0; row < job.row_count; ++row) {
    const float total = state.total[row];
    if (job.part) job.part->top[row] = state.top[row], job.part->total[row] = total;
    const vf factor = splat(total == 0.0f ? 0.0f : job.part ? 1.0f : 1.0f / total);
    for (int64_t d = 0; d < job.v_dim; d += kWidth) {
      const vf y = load(s.out + row * whole(job.v_dim) + d) * factor;
      if (job.part) store_some(job.part->y + row * job.v_dim + d, y, job.v_dim - d);
      else store_elements(job.element, job.rows[row].y, d, y, job.v_dim - d);
    }
  }
}

static void attend_few(const PanelJob& job, void* memory) {
  const FewScratch s = carve_few(job, memory);
  const Scaling scaling = scaling_of(job);
  FewState state{};
  start_few(job, s, scaling.factor, state);
  for (int64_t at = 0; at < job.count; at += kGroup) {
    const int64_t left = job.count - at, count = left < kGroup ? left : kGroup;
    list_keys(job, job.keys + at, left, count, s.group);
    for (int64_t row = 0; row < job.row_count; ++row) {
      const float top = score_row(job, s, row, job.keys + at, count, scaling.cap);
      fold_row(job, s, row, count, top, state);
    }
  }
  finish_few(job, s, state);
}
