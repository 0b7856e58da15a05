// How a block of query rows divides its attention among groups of keys: products as in attention, the softmax of each
// row, and sums over the rows in place of a product with values.

constexpr int64_t kStored = (1 << 17) / kLanes;  // as many keys' scores are kept; for more they are computed twice

struct MassPanel {
  float* qt;                 // [dim][lanes]
  float* scores;             // [keys][lanes]
  float *mass, *spread;      // [kWidth][kWidth]: partial sums of groups, to be added up across lanes
  const float** keys;        // [kListed]
  alignas(64) float factor[kLanes];
  alignas(64) float share[kLanes];  // what a weight is multiplied by: 1 / total, or 0 in a lane without a row
  alignas(64) int32_t seen[kLanes];
  int64_t count;             // keys that some row sees
};

INLINE int64_t score_rows(const MassJob& job) {
  const int64_t stored = job.count < kStored ? job.count : kStored;
  return (stored < kGroup ? kGroup : stored) + kAhead;
}

static size_t mass_bytes(const MassJob& job) {
  const int64_t floats = kLanes * (job.dim + score_rows(job)) + 2 * kWidth * kWidth;
  return sizeof(MassPanel) + (size_t)floats * 4 + kListed * sizeof(float*);
}

INLINE MassPanel& carve_mass(const MassJob& job, void* memory) {
  MassPanel& s = *static_cast<MassPanel*>(memory);
  float* at = reinterpret_cast<float*>(&s + 1);
  s.qt = at, at += kLanes * job.dim;
  s.scores = at, at += kLanes * score_rows(job);
  s.mass = at, at += kWidth * kWidth;
  s.spread = at, at += kWidth * kWidth;
  s.keys = reinterpret_cast<const float**>(at);
  return s;
}

template <int NR>
static void start_mass(const MassJob& job, int64_t first, int64_t rows, MassPanel& s) {
  constexpr int L = NR * kWidth;
  for (int j = 0; j < NR; ++j) {
    for (int64_t d = 0; d < job.dim; d += kWidth) {
      const int64_t n = job.dim - d < kWidth ? job.dim - d : kWidth;
      vf r[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        const int64_t row = j * kWidth + i;
        r[i] = row < rows ? load_elements(job.element, job.q, (first + row) * job.dim + d, n) : vf{};
      }
      transpose(r);
      for (int64_t i = 0; i < n; ++i) store(s.qt + (d + i) * L + j * kWidth, r[i]);
    }
  }
  s.count = job.seen ? 0 : job.count;
  for (int64_t i = 0; i < L; ++i) {
    const bool real = i < rows;
    s.factor[i] = real && job.row_factor ? job.row_factor[first + i] : 1.0f;
    s.seen[i] = real && job.seen ? job.seen[first + i] : (int32_t)job.count;
    if (real && s.seen[i] > s.count) s.count = s.seen[i];
  }
}

// Pointers to `count` keys; tiles may read on, at the last one.
INLINE void list_run(const MassJob& job, int64_t first, int64_t count, const float** keys) {
  for (int64_t i = 0; i < kListed; ++i) keys[i] = job.keys + (first + (i < count ? i : count - 1)) * job.dim;
}

INLINE vi load_ints(const int32_t* p) { return (vi)load(reinterpret_cast<const float*>(p)); }

// The logits of keys [at, at + count) in log2 units, and their maximum.
template <int NR, int MR>
static void mass_scores(const MassJob& job, const MassPanel& s, int64_t at, int64_t count, float* scores,
                        vf (&top)[NR]) {
  constexpr int L = NR * kWidth;
  vf ignored[NR];
  for (int j = 0; j < NR; ++j) ignored[j] = vf{};
  list_run(job, at, count, s.keys);
  for (int64_t i = 0; i < count; i += MR) {
    score_tile<NR, MR, 0, false>(s.keys + i, s.keys + i, s.qt, job.dim, scores + i * L, ignored);
  }
  for (int64_t i = 0; i < count; ++i) {
    const float factor = job.key_factor ? job.key_factor[at + i] : 1.0f;
    const float addend = job.key_addend ? job.key_addend[at + i] : 0.0f;
    for (int j = 0; j < NR; ++j) {
      vf x = load(scores + i * L + j * kWidth) * (load(s.factor + j * kWidth) * factor) + addend;
      if (job.seen) x = choose(load_ints(s.seen + j * kWidth) > (int32_t)(at + i), x, splat(-kInf));
      store(scores + i * L + j * kWidth, x);
      top[j] = larger(x, top[j]);
    }
  }
}

// Scores become 2^(score - top); their sums are added to total.
template <int NR>
INLINE void mass_weights(float* scores, int64_t count, const vf (&top)[NR], vf (&total)[NR]) {
  constexpr int L = NR * kWidth;
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) {
      const vf w = exp2v(load(scores + i * L + j * kWidth) - top[j]);
      store(scores + i * L + j * kWidth, w);
      total[j] += w;
    }
  }
}

// The sums of the group under way.
template <int NR>
struct MassSums {
  vf sum[NR], square[NR];
  int64_t key = 0, group = 0;  // the next key; groups that are full
  void clear() {
    for (int j = 0; j < NR; ++j) sum[j] = square[j] = vf{};
  }
};

INLINE void add_across(const float* partial, int64_t count, float* to) {
  vf r[kWidth], sum = vf{};
  for (int i = 0; i < kWidth; ++i) r[i] = load(partial + i * kWidth);
  transpose(r);
  for (int i = 0; i < kWidth; ++i) sum += r[i];
  store_some(to, load_some(to, count) + sum, count);
}

// Adds up to kWidth finished groups, those before `end`, to the results.
INLINE void hand_over(const MassJob& job, const MassPanel& s, int64_t end) {
  const int64_t first = (end - 1) / kWidth * kWidth;
  add_across(s.mass, end - first, job.mass + first);
  if (job.spread) add_across(s.spread, end - first, job.spread + first);
}

template <int NR>
INLINE void finish_group(const MassJob& job, const MassPanel& s, MassSums<NR>& sums) {
  const int64_t first = sums.group * job.group, left = job.count - first;
  const int32_t n = (int32_t)(left < job.group ? left : job.group);
  vf mass = vf{}, spread = vf{};
  for (int j = 0; j < NR; ++j) {
    mass += sums.sum[j];
    vi seen = load_ints(s.seen + j * kWidth) - (int32_t)first;
    seen = seen < n ? seen : vi{} + n;
    seen = seen > 1 ? seen : vi{} + 1;
    spread += sums.square[j] - sums.sum[j] * sums.sum[j] / __builtin_convertvector(seen, vf);
  }
  store(s.mass + sums.group % kWidth * kWidth, mass);
  store(s.spread + sums.group % kWidth * kWidth, spread);
  sums.clear();
  if (++sums.group % kWidth == 0) hand_over(job, s, sums.group);
}

// Takes the weights of the next `count` keys into groups.
template <int NR>
static void mass_groups(const MassJob& job, const MassPanel& s, const float* weights, int64_t count,
                        MassSums<NR>& sums) {
  constexpr int L = NR * kWidth;
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) {
      const vf p = load(weights + i * L + j * kWidth) * load(s.share + j * kWidth);
      sums.sum[j] += p;
      sums.square[j] += p * p;
    }
    if (++sums.key % job.group == 0) finish_group(job, s, sums);
  }
}

template <int NR>
INLINE void set_shares(int64_t rows, const vf (&total)[NR], MassPanel& s) {
  for (int j = 0; j < NR; ++j) store(s.share + j * kWidth, 1.0f / total[j]);
  for (int64_t i = rows; i < NR * kWidth; ++i) s.share[i] = 0.0f;
}

// Few keys: all scores are kept until the maximum is known.
template <int NR, int MR>
static void mass_stored(const MassJob& job, int64_t rows, MassPanel& s, MassSums<NR>& sums) {
  constexpr int L = NR * kWidth;
  vf top[NR], total[NR];
  for (int j = 0; j < NR; ++j) top[j] = splat(-kInf), total[j] = vf{};
  for (int64_t at = 0; at < s.count; at += kGroup) {
    const int64_t n = s.count - at < kGroup ? s.count - at : kGroup;
    mass_scores<NR, MR>(job, s, at, n, s.scores + at * L, top);
  }
  mass_weights<NR>(s.scores, s.count, top, total);
  set_shares<NR>(rows, total, s);
  mass_groups<NR>(job, s, s.scores, s.count, sums);
}

// Many keys: a first walk finds the maximum and the total, a second one computes the scores again.
template <int NR, int MR>
static void mass_twice(const MassJob& job, int64_t rows, MassPanel& s, MassSums<NR>& sums) {
  vf top[NR], total[NR];
  for (int j = 0; j < NR; ++j) top[j] = splat(-kInf), total[j] = vf{};
  for (int64_t at = 0; at < s.count; at += kGroup) {
    const int64_t n = s.count - at < kGroup ? s.count - at : kGroup;
    vf before[NR];
    for (int j = 0; j < NR; ++j) before[j] = top[j];
    mass_scores<NR, MR>(job, s, at, n, s.scores, top);
    for (int j = 0; j < NR; ++j) total[j] = at ? total[j] * exp2v(before[j] - top[j]) : vf{};
    mass_weights<NR>(s.scores, n, top, total);
  }
  set_shares<NR>(rows, total, s);
  for (int64_t at = 0; at < s.count; at += kGroup) {
    const int64_t n = s.count - at < kGroup ? s.count - at : kGroup;
    vf again[NR], more[NR];
    for (int j = 0; j < NR; ++j) again[j] = top[j], more[j] = vf{};
    mass_scores<NR, MR>(job, s, at, n, s.scores, again);
    mass_weights<NR>(s.scores, n, top, more);
    mass_groups<NR>(job, s, s.scores, n, sums);
  }
}

template <int NR, int MR>
static void mass_panel(const MassJob& job, int64_t first, int64_t rows, MassPanel& s) {
  start_mass<NR>(job, first, rows, s);
  MassSums<NR> sums;
  sums.clear();
  if (s.count <= kStored) mass_stored<NR, MR>(job, rows, s, sums);
  else mass_twice<NR, MR>(job, rows, s, sums);
  if (sums.key % job.group) finish_group(job, s, sums);
  if (sums.group % kWidth) hand_over(job, s, sums.group);
}

static void mass(const MassJob& job, void* memory) {
  MassPanel& s = carve_mass(job, memory);
  const int64_t groups = (job.count + job.group - 1) / job.group;
  for (int64_t i = 0; i < groups; ++i) job.mass[i] = 0.0f;
  for (int64_t i = 0; job.spread && i < groups; ++i) job.spread[i] = 0.0f;
  for (int64_t first = 0; first < job.rows; first += kLanes) {
    const int64_t rows = job.rows - first < kLanes ? job.rows - first : kLanes;
    if (rows <= kWidth) mass_panel<1, SPARSIFY_MR1>(job, first, rows, s);
    else if (SPARSIFY_NR == 2 || rows <= 2 * kWidth) mass_panel<2, SPARSIFY_MR2>(job, first, rows, s);
    else mass_panel<SPARSIFY_NR, SPARSIFY_MR>(job, first, rows, s);
  }
  for (int64_t i = 0; job.spread && i < groups; ++i) {
    if (job.spread[i] < 0.0f) job.spread[i] = 0.0f;
  }
}
