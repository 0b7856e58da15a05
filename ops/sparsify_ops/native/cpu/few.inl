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

// Products of R query rows with kWidth / R key rows, those of a row side by side. A key row is loaded once for all R, and
// each step of adding up across lanes serves two sums.
template <int R>
INLINE vf dot_rows(const float* const* keys, const float* q, int64_t stride) {
  constexpr int K = kWidth / R;
  vf sum[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) sum[i] = vf{};
  for (int64_t d = 0; d < stride; d += kWidth) {
    vf x[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) x[r] = load(q + r * stride + d);
#pragma GCC unroll 16
    for (int i = 0; i < K; ++i) {
      const vf k = load(keys[i] + d);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r * K + i] += k * x[r];
    }
  }
#pragma GCC unroll 4
  for (int half = kWidth / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) {
      sum[i] = low_half(sum[i], sum[i + half]) + high_half(sum[i], sum[i + half]);
    }
  }
  return sum[0];
}

// out[row][d...] = keep[row] * out + sum over keys of weight[row] * value row, for R rows and T vectors. One row has two
// sums of each vector, which hides the latency of one.
template <int R, int T>
INLINE void add_values_at(const float* const* values, const float* weights, int64_t count, const float* keep, float* out,
                          int64_t stride, int64_t d) {
  constexpr int S = R == 1 ? 2 : 1;
  vf sum[R][S][T];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      sum[r][S - 1][t] = vf{};
      sum[r][0][t] = load(out + r * stride + d + t * kWidth) * keep[r];
    }
  }
  int64_t key = 0;
  for (; key + S <= count; key += S) {
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) {
      const float* v = values[key + s] + d;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const vf w = splat(weights[r * kRowScores + key + s]);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sum[r][s][t] += load(v + t * kWidth) * w;
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      if (key < count) sum[r][0][t] += load(values[key] + d + t * kWidth) * weights[r * kRowScores + key];
      store(out + r * stride + d + t * kWidth, S == 1 ? sum[r][0][t] : sum[r][0][t] + sum[r][S - 1][t]);
    }
  }
}

template <int R>
INLINE void add_value_rows(const float* const* values, const float* weights, int64_t count, const float* keep, float* out,
                           int64_t stride) {
  constexpr int T = R == 4 ? kWidth / 4 : 4;  // as many sums as there are registers for
  int64_t d = 0;
  for (; d + T * kWidth <= stride; d += T * kWidth) add_values_at<R, T>(values, weights, count, keep, out, stride, d);
  for (; d < stride; d += kWidth) add_values_at<R, 1>(values, weights, count, keep, out, stride, d);
}

// What may happen to a row's scores of up to kWidth keys before the softmax; scores behind the list become -inf.
INLINE vf change_row(const PanelJob& job, const Row& row, const int32_t* keys, int64_t count, float cap, vf x) {
  const bool run = is_run(keys, count);
  if (cap > 0) x = soften(x, cap);
  if (job.key_bias) x = x + (run ? load(job.key_bias + keys[0]) : row_bias(Element::f32, job.key_bias, 1, keys, count, false));
  if (job.masked || job.biased) x = add_extra(x, row_extras(job, row, keys, count, run));
  if (job.limited) {
    vi key = vi{} + keys[0];
    for (int64_t i = 1; i < kWidth; ++i) key[i] = i < count ? keys[i] : keys[0];
    x = choose((key >= row.low) & (key <= row.high), x, splat(-kInf));
  }
  if (count >= kWidth) return x;
  for (int64_t i = count; i < kWidth; ++i) x[i] = -kInf;
  return x;
}

INLINE void fetch_group(const PanelJob& job, const FewScratch& s, int64_t at) {
  for (int64_t i = at; i < at + kWidth; ++i) {
    fetch_row(reinterpret_cast<const char*>(s.group.keys[i + 2 * kWidth]), job.qk_dim * 4);
    fetch_row(reinterpret_cast<const char*>(s.group.values[i]), job.v_dim * 4);
  }
}

// Scores of a group of keys for R rows, and their maxima.
template <int R>
INLINE void score_rows(const PanelJob& job, const FewScratch& s, int64_t row, const int32_t* keys, int64_t count,
                       float cap, float* tops) {
  constexpr int K = kWidth / R;
  float* scores = s.scores + row * kRowScores;
  const float* q = s.q + row * whole(job.qk_dim);
  vf top[R];
  for (int r = 0; r < R; ++r) top[r] = splat(-kInf);
  for (int64_t at = 0; at < count; at += kWidth) {
    if (row == 0 && !s.group.key_rows) fetch_group(job, s, at);
    for (int64_t i = at; i < at + kWidth; i += K) {
      alignas(64) float tile[kWidth];
      store(tile, dot_rows<R>(s.group.keys + i, q, whole(job.qk_dim)));
      for (int r = 0; r < R; ++r) __builtin_memcpy(scores + r * kRowScores + i, tile + r * K, K * sizeof(float));
    }
    for (int r = 0; r < R; ++r) {
      vf x = load(scores + r * kRowScores + at);
      x = change_row(job, job.rows[row + r], keys + at, count - at < kWidth ? count - at : kWidth, cap, x);
      store(scores + r * kRowScores + at, x);
      top[r] = larger(x, top[r]);
    }
  }
  for (int r = 0; r < R; ++r) tops[r] = largest(top[r]);
}

// Takes a row's scores into its running softmax; gives what its output so far is multiplied by.
INLINE float weigh_row(float* scores, int64_t count, float top, float& row_top, float& row_total) {
  const float before = row_top, now = top > before ? top : before;
  const vf base = splat(now == -kInf ? 0.0f : now);
  vf total = vf{};
  for (int64_t at = 0; at < count; at += kWidth) {
    const vf w = exp2v(load(scores + at) - base);
    store(scores + at, w);
    total += w;
  }
  const float keep = exp2v(splat(before) - base)[0];
  row_top = now;
  row_total = row_total * keep + sum_of(total);
  return keep;
}

template <int R>
static void attend_few_rows(const PanelJob& job, const FewScratch& s, int64_t row, const int32_t* keys, int64_t count,
                            float cap, FewState& state) {
  float top[R], keep[R];
  float* scores = s.scores + row * kRowScores;
  score_rows<R>(job, s, row, keys, count, cap, top);
  for (int r = 0; r < R; ++r) {
    keep[r] = weigh_row(scores + r * kRowScores, count, top[r], state.top[row + r], state.total[row + r]);
  }
  const int64_t stride = whole(job.v_dim);
  add_value_rows<R>(s.group.values, scores, count, keep, s.out + row * stride, stride);
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
    int64_t row = 0;
    for (; row + 4 <= job.row_count; row += 4) attend_few_rows<4>(job, s, row, job.keys + at, count, scaling.cap, state);
    for (; row + 2 <= job.row_count; row += 2) attend_few_rows<2>(job, s, row, job.keys + at, count, scaling.cap, state);
    for (; row < job.row_count; ++row) attend_few_rows<1>(job, s, row, job.keys + at, count, scaling.cap, state);
  }
  finish_few(job, s, state);
}
