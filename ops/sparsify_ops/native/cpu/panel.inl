// One panel from queries to outputs: transposes the queries, walks the keys in groups, keeps the running softmax.

constexpr int64_t kGroup = SPARSIFY_GROUP;         // keys per softmax group; a multiple of every MR below
constexpr int64_t kAhead = 32;                     // pointers beyond a group that tiles and prefetches look at
constexpr int kLanes = SPARSIFY_NR * kWidth;

struct Scratch {
  float *qt, *ot, *scores, *extras, *length;
  const float** keys;
  const float** values;
};

static size_t scratch_bytes(int64_t qk_dim, int64_t v_dim) {
  const int64_t floats = kLanes * (qk_dim + v_dim + 2 * (kGroup + kAhead) + 1);
  return (size_t)floats * 4 + 2 * (kGroup + kAhead) * sizeof(float*) + 64 * 8;
}

INLINE Scratch carve(const PanelJob& job, void* memory) {
  Scratch s;
  float* at = static_cast<float*>(memory);
  s.qt = at, at += kLanes * job.qk_dim;
  s.ot = at, at += kLanes * job.v_dim;
  s.scores = at, at += kLanes * (kGroup + kAhead);
  s.extras = at, at += kLanes * (kGroup + kAhead);
  s.length = at, at += kLanes;
  s.keys = reinterpret_cast<const float**>(at);
  s.values = s.keys + kGroup + kAhead;
  return s;
}

// qt[d][lane] = factor * q[lane][d]; lanes without a row are zero.
template <int NR>
static void pack_queries(const PanelJob& job, float factor, float* qt) {
  constexpr int L = NR * kWidth;
  for (int j = 0; j < NR; ++j) {
    for (int64_t d = 0; d < job.qk_dim; d += kWidth) {
      const int64_t n = job.qk_dim - d < kWidth ? job.qk_dim - d : kWidth;
      vf r[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        const int64_t row = j * kWidth + i;
        r[i] = row < job.rows ? load_some(job.q + row * job.qk_dim + d, n) : vf{};
      }
      transpose(r);
      if (n == kWidth) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) store(qt + (d + i) * L + j * kWidth, r[i] * factor);
      } else {
        for (int64_t i = 0; i < n; ++i) store(qt + (d + i) * L + j * kWidth, r[i] * factor);
      }
    }
  }
}

// y[lane][d] = ot[d][lane] / total[lane]; a row without terms gives zeros.
template <int NR>
static void unpack_outputs(const PanelJob& job, const float* ot, const vf (&total)[NR]) {
  constexpr int L = NR * kWidth;
  for (int j = 0; j < NR; ++j) {
    const vi empty = total[j] == vf{};
    const vf inverse = 1.0f / total[j];
    for (int64_t d = 0; d < job.v_dim; d += kWidth) {
      const int64_t n = job.v_dim - d < kWidth ? job.v_dim - d : kWidth;
      vf r[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        r[i] = i < n ? choose(empty, vf{}, load(ot + (d + i) * L + j * kWidth) * inverse) : vf{};
      }
      transpose(r);
      for (int i = 0; i < kWidth && j * kWidth + i < job.rows; ++i) {
        store_some(job.y + (j * kWidth + i) * job.v_dim + d, r[i], n);
      }
    }
  }
}

template <int NR>
struct Softmax {
  vf top[NR], total[NR];
  bool started = false;  // whether ot holds anything yet
};

// A sink is a logit that was there before the first key and has no value.
template <int NR>
INLINE void start(Softmax<NR>& state, float sink) {
  const bool is_nan = sink != sink;
  for (int j = 0; j < NR; ++j) {
    state.top[j] = splat(is_nan ? -kInf : to_log2(sink));
    state.total[j] = splat(is_nan ? sink : sink == -kInf ? 0.0f : 1.0f);
  }
}

// Takes a group's scores, with their maximum, into the running softmax and output.
template <int NR, int MR>
INLINE void fold(const PanelJob& job, const Scratch& s, int64_t count, const vf (&top)[NR], Softmax<NR>& state) {
  vf base[NR], keep[NR];
  for (int j = 0; j < NR; ++j) {
    const vf now = larger(top[j], state.top[j]);
    base[j] = choose(now == splat(-kInf), vf{}, now);  // a row that saw only -inf must not compute -inf - -inf
    keep[j] = exp2v(state.top[j] - base[j]);
    state.total[j] *= keep[j];
    state.top[j] = now;
  }
  weigh<NR>(s.scores, count, base, state.total);
  add_values<NR, MR>(s.values, count, s.scores, s.ot, job.v_dim, keep, !state.started);
  state.started = true;
}

template <int NR, int MR>
INLINE void score_group(const PanelJob& job, const Scratch& s, int64_t count, vf (&top)[NR]) {
  for (int j = 0; j < NR; ++j) top[j] = splat(-kInf);
  for (int64_t at = 0; at < count; at += MR) {
    score_tile<NR, MR>(s.keys + at, s.values + at, s.qt, job.qk_dim, s.scores + at * NR * kWidth, top);
  }
}

// Pointers to `count` rows; behind the list's end the last one repeats, which can not change a maximum.
INLINE void list_rows(const PanelJob& job, const int32_t* keys, int64_t left, int64_t count, const Scratch& s) {
  const int64_t real = left < count ? left : count;
  for (int64_t i = 0; i < real; ++i) {
    s.keys[i] = job.k + keys[i] * job.qk_dim;
    s.values[i] = job.v + keys[i] * job.v_dim;
  }
  for (int64_t i = real; i < count; ++i) {
    s.keys[i] = s.keys[real - 1];
    s.values[i] = s.values[real - 1];
  }
}

template <int NR, int MR>
static void walk_keys(const PanelJob& job, const Scratch& s, float cap, Softmax<NR>& state) {
  Changes what;
  what.elements = job.mask || job.bias;
  what.key_bias = job.key_bias != nullptr;
  what.cap = cap;
  for (int64_t at = 0; at < job.count; at += kGroup) {
    const int32_t* keys = job.keys + at;
    const int64_t left = job.count - at, count = left < kGroup ? left : kGroup;
    what.limits = job.low && (keys[0] < job.safe_low || keys[count - 1] > job.safe_high);
    if (what.elements) {
      const bool any = element_extras<NR>(job, keys, count, s.extras);
      prefetch_extras(job, keys + count, left - count < kGroup ? left - count : kGroup);
      if (!any) continue;
    }
    list_rows(job, keys, left, kGroup + kAhead, s);
    vf top[NR];
    score_group<NR, MR>(job, s, count, top);
    if (what.limits || what.elements || what.key_bias || cap > 0) {
      change_keys<NR>(job, what, keys, count, s.extras, s.scores, top);
    }
    fold<NR, MR>(job, s, count, top, state);
  }
}

template <int NR>
static void query_lengths(const PanelJob& job, const Scratch& s) {
  constexpr int L = NR * kWidth;
  for (int j = 0; j < NR; ++j) {
    vf sum = vf{};
    for (int64_t d = 0; d < job.qk_dim; ++d) {
      const vf q = load(s.qt + d * L + j * kWidth);
      sum += q * q;
    }
    for (int i = 0; i < kWidth; ++i) s.length[j * kWidth + i] = __builtin_sqrtf(sum[i]) * (1.0f / kLog2e);
  }
}

template <int NR, int MR>
static void walk_pseudo(const PanelJob& job, const Scratch& s, float cap, Softmax<NR>& state) {
  const PseudoKeys& p = job.pseudo;
  if (p.deviation) query_lengths<NR>(job, s);
  for (int64_t at = 0; at < p.count; at += kGroup) {
    const int64_t count = p.count - at < kGroup ? p.count - at : kGroup;
    for (int64_t i = 0; i < count + kAhead; ++i) {
      const int64_t from = at + i < p.count ? at + i : p.count - 1;
      s.keys[i] = p.k[from];
      s.values[i] = p.v[from];
    }
    vf top[NR];
    score_group<NR, MR>(job, s, count, top);
    change_pseudo<NR>(job, at, count, cap, s.length, s.scores, top);
    fold<NR, MR>(job, s, count, top, state);
  }
}

template <int NR, int MR>
static void attend_panel(const PanelJob& job, const Scratch& s) {
  const bool capped = job.softcap > 0;
  const float cap = capped ? job.softcap * kLog2e : 0.0f;
  pack_queries<NR>(job, capped ? 2.0f * kLog2e * (job.scale / job.softcap) : job.scale * kLog2e, s.qt);
  Softmax<NR> state;
  start<NR>(state, job.sink);
  walk_keys<NR, MR>(job, s, cap, state);
  walk_pseudo<NR, MR>(job, s, cap, state);
  if (!state.started) {
    for (int64_t i = 0; i < NR * kWidth * job.v_dim; ++i) s.ot[i] = 0.0f;
  }
  unpack_outputs<NR>(job, s.ot, state.total);
}

// Fewer rows take a narrower panel, so short sequences do not pay for empty lanes.
static void attend(const PanelJob& job, void* memory) {
  const Scratch s = carve(job, memory);
  if (job.rows <= kWidth) {
    attend_panel<1, SPARSIFY_MR1>(job, s);
  } else if (SPARSIFY_NR == 2 || job.rows <= 2 * kWidth) {
    attend_panel<2, SPARSIFY_MR2>(job, s);
  } else if constexpr (SPARSIFY_NR == 4) {
    job.rows <= 3 * kWidth ? attend_panel<3, 4>(job, s) : attend_panel<4, SPARSIFY_MR>(job, s);
  }
}
