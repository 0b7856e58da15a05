// Panels of query rows from queries to outputs: transposes the queries, walks the keys in groups, keeps the running
// softmax. All panels of a job look at a group of keys before the next group is read, so that it stays in the cache.

// Of a job at once: their queries and outputs have to stay in the cache as well. Making words takes time for each group.
constexpr int64_t kMostRows = SPARSIFY_PAIRS ? 256 : 128;
constexpr int64_t kMostPanels = kMostRows / kLanes;

struct Scratch {
  Panel* panels;
  float *scores, *extras;
  Group group;
};

static size_t panel_bytes(const PanelJob& job) {
  const int64_t rows = job.row_count < kMostRows ? job.row_count : kMostRows;
  const int64_t panels = (rows + kLanes - 1) / kLanes;
  const int64_t floats = panels * kLanes * (job.qk_dim + job.v_dim) + 2 * kLanes * kListed +
                         group_floats(job, false);
  return (size_t)(kMostPanels * sizeof(Panel)) + (size_t)floats * 4 + 2 * kListed * sizeof(float*);
}

INLINE void carve(const PanelJob& job, int64_t panels, void* memory, Scratch& s) {
  s.panels = static_cast<Panel*>(memory);
  float* at = reinterpret_cast<float*>(s.panels + kMostPanels);
  for (int64_t i = 0; i < panels; ++i) {
    s.panels[i].qt = at, at += kLanes * job.qk_dim;
    s.panels[i].ot = at, at += kLanes * job.v_dim;
  }
  s.scores = at, at += kLanes * kListed;
  s.extras = at, at += kLanes * kListed;
  carve_group(job, false, at, s.group);
}

// qt[d][lane] = factor * q[lane][d]; lanes without a row are zero.
template <int NR>
static void pack_queries(const PanelJob& job, Panel& panel, float factor) {
  constexpr int L = NR * kWidth;
  for (int j = 0; j < NR; ++j) {
    for (int64_t d = 0; d < job.qk_dim; d += kWidth) {
      const int64_t n = job.qk_dim - d < kWidth ? job.qk_dim - d : kWidth;
      vf r[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        const int64_t row = j * kWidth + i;
        r[i] = row < panel.count ? load_elements(job.element, panel.rows[row].q, d, n) : vf{};
      }
      transpose(r);
      float* to = panel.qt + d * L + j * kWidth;
      if (n == kWidth) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) store(to + i * L, r[i] * factor);
      } else {
        for (int64_t i = 0; i < n; ++i) store(to + i * L, r[i] * factor);
      }
    }
  }
}

// What change_pseudo wants to know of a query: scale * |q|, in its units.
template <int NR>
static void query_lengths(const PanelJob& job, Panel& panel) {
  constexpr int L = NR * kWidth;
  vf sum[NR];
#pragma GCC unroll 4
  for (int j = 0; j < NR; ++j) sum[j] = vf{};
  for (int64_t d = 0; d < job.qk_dim; ++d) {
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) {
      const vf q = load(panel.qt + d * L + j * kWidth);
      sum[j] += q * q;
    }
  }
  for (int j = 0; j < NR; ++j) store(panel.length + j * kWidth, sum[j]);
  for (int i = 0; i < L; ++i) panel.length[i] = __builtin_sqrtf(panel.length[i] * (0.5f / kLog2e));
}

template <int NR>
static void prepare(const PanelJob& job, Panel& panel, float factor) {
  pack_queries<NR>(job, panel, factor);
  if (job.pseudo.deviation) query_lengths<NR>(job, panel);
  seal_queries<NR>(panel.qt, job.qk_dim);
}

// y[lane][d] = ot[d][lane] / total[lane]; a row without terms gives zeros. A part is left undivided.
template <int NR>
static void unpack_outputs(const PanelJob& job, const Panel& panel) {
  constexpr int L = NR * kWidth;
  for (int j = 0; j < NR; ++j) {
    const vf total = load(panel.total + j * kWidth);
    const vi empty = total == vf{};
    const vf factor = job.part ? splat(1.0f) : 1.0f / total;
    for (int64_t d = 0; d < job.v_dim; d += kWidth) {
      const int64_t n = job.v_dim - d < kWidth ? job.v_dim - d : kWidth;
      vf r[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        r[i] = i < n ? choose(empty, vf{}, load(panel.ot + (d + i) * L + j * kWidth) * factor) : vf{};
      }
      transpose(r);
      for (int i = 0; i < kWidth && j * kWidth + i < panel.count; ++i) {
        const int64_t row = j * kWidth + i;
        if (job.part) store_some(job.part->y + (panel.first + row) * job.v_dim + d, r[i], n);
        else store_elements(job.element, panel.rows[row].y, d, r[i], n);
      }
    }
  }
}

static void finish_part(const PanelJob& job, const Panel& panel) {
  for (int64_t i = 0; i < panel.count; ++i) {
    job.part->top[panel.first + i] = panel.top[i];
    job.part->total[panel.first + i] = panel.total[i];
  }
}

static void limit_panel(Panel& panel) {
  panel.any_low = panel.safe_high = INT32_MAX;
  panel.any_high = panel.safe_low = panel.half_high = INT32_MIN;
  for (int64_t i = 0; i < kLanes; ++i) {
    const bool real = i < panel.count;
    const int32_t low = panel.low[i] = real ? panel.rows[i].low : INT32_MIN;
    const int32_t high = panel.high[i] = real ? panel.rows[i].high : INT32_MAX;
    if (!real) continue;
    panel.any_low = low < panel.any_low ? low : panel.any_low;
    panel.any_high = high > panel.any_high ? high : panel.any_high;
    if (i < kLanes / 2) panel.half_high = panel.any_high;
    panel.safe_low = low > panel.safe_low ? low : panel.safe_low;
    panel.safe_high = high < panel.safe_high ? high : panel.safe_high;
  }
}

// Lanes without a row restrict nothing; their results are dropped.
static void start_panel(const PanelJob& job, int64_t first, Panel& panel) {
  panel.first = first;
  panel.rows = job.rows + first;
  panel.count = job.row_count - first < kLanes ? job.row_count - first : kLanes;
  panel.started = false;
  for (int64_t i = 0; i < kLanes; ++i) {
    start_row(i < panel.count ? panel.rows[i].sink : -kInf, panel.top[i], panel.total[i]);
  }
  if (job.limited) limit_panel(panel);
}

// Takes scores, with their maximum, into the running softmax and output.
template <int NR, int MR, int From>
INLINE void fold(const PanelJob& job, const Scratch& s, Panel& panel, int64_t from, int64_t count,
                 const vf (&top)[NR]) {
  vf base[NR], keep[NR], total[NR];
  for (int j = From; j < NR; ++j) {
    const vf before = load(panel.top + j * kWidth), now = larger(top[j], before);
    base[j] = choose(now == splat(-kInf), vf{}, now);  // a row that saw only -inf must not compute -inf - -inf
    keep[j] = exp2v(before - base[j]);
    total[j] = load(panel.total + j * kWidth) * keep[j];
    store(panel.top + j * kWidth, now);
  }
  weigh<NR, From>(s.scores, count, base, total);
  for (int j = From; j < NR; ++j) store(panel.total + j * kWidth, total[j]);
  add_values<NR, MR, From>(s.group.values + from / kTogether, words(count), s.scores, panel.ot, job.v_dim, keep,
                     !panel.started);
  panel.started = true;
}

// Scores of `count` listed keys; the last tile may compute more of them, which then do not count for the maximum.
template <int NR, int MR, int From>
INLINE void score_keys(const PanelJob& job, const Scratch& s, const Panel& panel, int64_t from, int64_t count,
                       bool fetch, vf (&top)[NR]) {
  constexpr int L = NR * kWidth;
  const float* const* keys = s.group.keys + from;
  const float* const* values = s.group.values + from;
  for (int j = From; j < NR; ++j) top[j] = splat(-kInf);
  if (fetch) {
    for (int64_t at = 0; at < count; at += MR)
      score_tile<NR, MR, From, true>(keys + at, values + at, panel.qt, words(job.qk_dim), s.scores + at * L, top);
  } else {
    for (int64_t at = 0; at < count; at += MR)
      score_tile<NR, MR, From, false>(keys + at, values + at, panel.qt, words(job.qk_dim), s.scores + at * L, top);
  }
  if (count % MR == 0) return;
  for (int j = From; j < NR; ++j) top[j] = splat(-kInf);
  for (int64_t at = 0; at < count; ++at) {
    for (int j = From; j < NR; ++j) top[j] = larger(load(s.scores + at * L + j * kWidth), top[j]);
  }
}

// The listed keys `from` and following, seen by one panel.
struct Span {
  const int32_t* keys;  // their ids
  int64_t from, count;
  bool fetch;           // whether this panel is the first to read the rows
};

// The vectors of lanes before From see none of these keys.
template <int NR, int MR, int From>
static void attend_span(const PanelJob& job, const Scratch& s, Panel& panel, const Span& span, float cap) {
  Changes what;
  what.elements = job.masked || job.biased;
  what.key_bias = job.key_bias != nullptr;
  what.cap = cap;
  what.limits = job.limited && (span.keys[0] < panel.safe_low || span.keys[span.count - 1] > panel.safe_high);
  Extras extras = Extras::none;
  if (what.elements) {
    extras = element_extras<NR>(job, panel, span.keys, span.count, s.extras);
    if (extras == Extras::none) return;
  }
  vf top[NR];
  score_keys<NR, MR, From>(job, s, panel, span.from, span.count, span.fetch, top);
  if (what.key_bias || cap > 0 || (what.elements && what.limits)) {
    change_keys<NR, From>(job, panel, what, span.keys, span.count, s.extras, s.scores, top);
  } else if (extras == Extras::plain) {
    change_keys<NR, From>(job, panel, OnlyPlain{}, span.keys, span.count, s.extras, s.scores, top);
  } else if (what.elements) {
    change_keys<NR, From>(job, panel, OnlyElements{}, span.keys, span.count, s.extras, s.scores, top);
  } else if (what.limits) {
    change_keys<NR, From>(job, panel, OnlyLimits{}, span.keys, span.count, s.extras, s.scores, top);
  }
  fold<NR, MR, From>(job, s, panel, span.from, span.count, top);
}

// How many keys of a span come before those that only the second half of the lanes sees, as under a causal mask. Keys
// with extras are not told apart.
INLINE int64_t seen_by_half(const PanelJob& job, const Panel& panel, const Span& span) {
  constexpr int64_t kLeast = 16;  // of such keys, to be worth a step of their own; whole tiles and words
  if (!job.limited || job.masked || job.biased) return span.count;
  int64_t from = span.count;
  while (from > 0 && span.keys[from - 1] > panel.half_high) --from;
  from = (from + kLeast - 1) / kLeast * kLeast;
  return from + kLeast <= span.count && (from > 0 || panel.started) ? from : span.count;
}

template <int NR, int MR>
static void attend_keys(const PanelJob& job, const Scratch& s, Panel& panel, const Span& span, float cap) {
  if constexpr (NR == 4) {
    const int64_t early = seen_by_half(job, panel, span), late = span.count - early;
    if (early) attend_span<4, MR, 0>(job, s, panel, {span.keys, span.from, early, span.fetch}, cap);
    if (late) attend_span<4, SPARSIFY_MR2, 2>(job, s, panel, {span.keys + early, span.from + early, late, span.fetch}, cap);
  } else {
    attend_span<NR, MR, 0>(job, s, panel, span, cap);
  }
}

template <int NR, int MR>
static void attend_pseudo(const PanelJob& job, const Scratch& s, Panel& panel, const Span& span, float cap) {
  vf top[NR];
  score_keys<NR, MR, 0>(job, s, panel, 0, span.count, span.fetch, top);
  change_pseudo<NR>(job, panel, span.from, span.count, cap, s.scores, top);
  fold<NR, MR, 0>(job, s, panel, 0, span.count, top);
}

template <int NR>
static void finish_panel(const PanelJob& job, Panel& panel) {
  if (!panel.started) {
    for (int64_t i = 0; i < NR * kWidth * job.v_dim; ++i) panel.ot[i] = 0.0f;
  }
  unpack_outputs<NR>(job, panel);
  if (job.part) finish_part(job, panel);
}

// What a panel does at each step, for as many vectors of lanes as its rows need: fewer rows take a narrower panel, so
// that short sequences do not pay for empty lanes.
struct Steps {
  void (*prepare)(const PanelJob&, Panel&, float factor);
  void (*keys)(const PanelJob&, const Scratch&, Panel&, const Span&, float cap);
  void (*pseudo)(const PanelJob&, const Scratch&, Panel&, const Span&, float cap);
  void (*finish)(const PanelJob&, Panel&);
};

template <int NR, int MR>
INLINE Steps steps() {
  return {prepare<NR>, attend_keys<NR, MR>, attend_pseudo<NR, MR>, finish_panel<NR>};
}

INLINE Steps steps_for(int64_t rows) {
  if (rows <= kWidth) return steps<1, SPARSIFY_MR1>();
  if (SPARSIFY_NR == 2 || rows <= 2 * kWidth) return steps<2, SPARSIFY_MR2>();
  if constexpr (SPARSIFY_NR == 4) {
    if (rows <= 3 * kWidth) return steps<3, 4>();
    return steps<4, SPARSIFY_MR>();
  }
  return steps<2, SPARSIFY_MR2>();
}

// The part of a group that some row of the panel may see.
INLINE Span visible(const PanelJob& job, const Panel& panel, const int32_t* keys, int64_t count) {
  int64_t from = 0, end = count;
  if (job.limited) {
    while (from < end && keys[from] < panel.any_low) ++from;
    from -= from % kTogether;
    while (end > from && keys[end - 1] > panel.any_high) --end;
  }
  return {keys + from, from, end - from, false};
}

// Asks for what comes next, before the last group of keys: the rows to write, and the queries behind these, which most
// often are those of the next block.
INLINE void fetch_next(const PanelJob& job, int64_t first, int64_t rows) {
  const int64_t q_bytes = bytes_of(job.element) * job.qk_dim, y_bytes = bytes_of(job.element) * job.v_dim;
  for (int64_t i = first; i < first + rows; ++i) {
    const char* q = static_cast<const char*>(job.rows[i].q) + rows * q_bytes;
    const char* y = static_cast<const char*>(job.rows[i].y);
    for (int64_t at = 0; at < q_bytes; at += 64) __builtin_prefetch(q + at);
    for (int64_t at = 0; at < y_bytes; at += 64) __builtin_prefetch(y + at, 1);
  }
}

static void walk_keys(const PanelJob& job, const Scratch& s, int64_t panels, int64_t rows, float cap) {
  const bool long_rows = job.qk_dim + job.v_dim >= 256;  // too much for the prefetchers of the hardware
  for (int64_t at = 0; at < job.count; at += kGroup) {
    const int32_t* keys = job.keys + at;
    const int64_t left = job.count - at, count = left < kGroup ? left : kGroup;
    const int64_t next = left - count < kGroup ? left - count : kGroup;
    list_group(job, keys, left, count, s.group);
    if (left == count) fetch_next(job, s.panels[0].first, rows);
    bool fetch = !s.group.key_rows && (long_rows || keys[count - 1] - keys[0] != count - 1);
    for (int64_t i = 0; i < panels; ++i) {
      // Just in time: rows of a mask often lie a power of two apart and drive each other out of the cache.
      if (i + 1 < panels) prefetch_extras(job, s.panels[i + 1], keys, count);
      else prefetch_extras(job, s.panels[0], keys + count, next);
      Span span = visible(job, s.panels[i], keys, count);
      if (span.count == 0) continue;
      span.fetch = fetch;
      steps_for(s.panels[i].count).keys(job, s, s.panels[i], span, cap);
      fetch = false;
    }
  }
}

static void walk_pseudo(const PanelJob& job, const Scratch& s, int64_t panels, float cap) {
  for (int64_t at = 0; at < job.pseudo.count; at += kGroup) {
    const int64_t left = job.pseudo.count - at, count = left < kGroup ? left : kGroup;
    list_pseudo(job, at, count, s.group);
    for (int64_t i = 0; i < panels; ++i) {
      const Span span{nullptr, at, count, i == 0};
      steps_for(s.panels[i].count).pseudo(job, s, s.panels[i], span, cap);
    }
  }
}

// Up to kMostRows rows.
static void attend_rows(const PanelJob& job, int64_t first, int64_t rows, void* memory) {
  const int64_t panels = (rows + kLanes - 1) / kLanes;
  Scratch s;
  carve(job, panels, memory, s);
  const Scaling scaling = scaling_of(job);
  for (int64_t i = 0; i < panels; ++i) {
    start_panel(job, first + i * kLanes, s.panels[i]);
    steps_for(s.panels[i].count).prepare(job, s.panels[i], scaling.factor);
  }
  walk_keys(job, s, panels, rows, scaling.cap);
  walk_pseudo(job, s, panels, scaling.cap);
  for (int64_t i = 0; i < panels; ++i) steps_for(s.panels[i].count).finish(job, s.panels[i]);
}

// Where one group holds all keys there is nothing to share, and one panel at a time stays in the nearest cache.
static void attend_panels(const PanelJob& job, void* memory) {
  const bool alone = job.count + job.pseudo.count <= kGroup && !copies(job, false);
  const int64_t step = alone ? kLanes : kMostRows;
  for (int64_t first = 0; first < job.row_count; first += step) {
    attend_rows(job, first, job.row_count - first < step ? job.row_count - first : step, memory);
  }
}
