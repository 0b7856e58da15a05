// A panel of query rows, one in each lane, and the changes of scores.inl to its scores, which lie as [key][lane].

constexpr int kLanes = SPARSIFY_NR * kWidth;

struct Panel {
  alignas(64) float top[kLanes];
  alignas(64) float total[kLanes];
  alignas(64) float length[kLanes];  // of the queries, for pseudo-keys with a spread
  alignas(64) int32_t low[kLanes];
  alignas(64) int32_t high[kLanes];
  const Row* rows;
  int64_t first, count;          // of the rows, within the job
  float *qt, *ot;                // [dim][lanes]
  int32_t any_low, any_high;     // keys that some row may see
  int32_t safe_low, safe_high;   // keys that all rows may see
  int32_t half_high;             // the last key that a row of the first half of the lanes may see
  bool started;                  // whether ot holds anything yet
};

// Whether extras that are not all plain allow any row any key.
INLINE Extras judge(const Panel& panel, int64_t count, int64_t lanes, const float* extras) {
  for (int64_t at = 0; at < count; ++at) {
    for (int64_t i = 0; i < lanes && i < panel.count; ++i) {
      if (!(extras[at * lanes + i] == -kInf)) return Extras::some;
    }
  }
  return Extras::none;
}

// The extras of up to kWidth keys, from rows to lanes. Says in which lanes they are plain. `direct` holds where they
// are nothing but float32 biases of neighbouring keys for a full panel.
template <int NR, bool direct>
INLINE vi turn_extras(const PanelJob& job, const Panel& panel, const int32_t* keys, int64_t count, float* out) {
  constexpr int L = NR * kWidth;
  const int64_t n = count < kWidth ? count : kWidth;
  const bool run = direct || is_run(keys, n);
  vi plain = ~vi{};
  for (int j = 0; j < NR; ++j) {
    vf r[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      const int64_t row = j * kWidth + i;
      if (direct) r[i] = load(static_cast<const float*>(panel.rows[row].bias) + keys[0]);
      else r[i] = row < panel.count ? row_extras(job, panel.rows[row], keys, n, run) : vf{};
    }
    transpose(r);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kWidth; ++i) {
      if (!direct && i >= n) break;
      plain &= is_plain(r[i]);
      store(out + i * L + j * kWidth, r[i]);
    }
  }
  return plain;
}

// out[key][lane] for some keys, natural logits.
template <int NR>
static Extras element_extras(const PanelJob& job, const Panel& panel, const int32_t* keys, int64_t count,
                             float* out) {
  constexpr int L = NR * kWidth;
  const bool floats = job.biased && !job.masked && job.element == Element::f32 && job.bias_key == 1;
  vi plain = ~vi{};
  for (int64_t at = 0; at < count; at += kWidth) {
    const bool direct = floats && panel.count == L && is_run(keys + at, count - at);
    plain &= direct ? turn_extras<NR, true>(job, panel, keys + at, count - at, out + at * L)
                    : turn_extras<NR, false>(job, panel, keys + at, count - at, out + at * L);
  }
  return any_of(~plain) ? judge(panel, count, L, out) : Extras::plain;
}

// Biases lie a whole row apart, which no hardware prefetcher follows.
INLINE void prefetch_extras(const PanelJob& job, const Panel& panel, const int32_t* keys, int64_t count) {
  if (count <= 0 || !(job.biased || job.masked) || keys[count - 1] - keys[0] >= 2 * count) return;
  for (int64_t i = 0; i < panel.count; ++i) {
    const Row& row = panel.rows[i];
    for (int64_t at = 0; job.biased && at < count; at += 16) {
      __builtin_prefetch(element_at(job.element, row.bias, keys[at] * job.bias_key), 0, 2);
    }
    for (int64_t at = 0; job.masked && at < count; at += 64) {
      __builtin_prefetch(row.mask + keys[at] * job.mask_key, 0, 2);
    }
  }
}

template <int NR, int From, class What>
static void change_keys(const PanelJob& job, const Panel& panel, const What& what, const int32_t* keys, int64_t count,
                        const float* extras, float* scores, vf (&top)[NR]) {
  constexpr int L = NR * kWidth;
  vi low[NR], high[NR];
  for (int j = From; j < NR; ++j) {
    top[j] = splat(-kInf);
    low[j] = high[j] = vi{};
    if (!what.limits) continue;
    __builtin_memcpy(&low[j], panel.low + j * kWidth, sizeof low[j]);
    __builtin_memcpy(&high[j], panel.high + j * kWidth, sizeof high[j]);
  }
  for (int64_t at = 0; at < count; ++at) {
    const vi key = vi{} + keys[at];
    const float addend = what.key_bias ? job.key_bias[keys[at]] : 0.0f;
#pragma GCC unroll 4
    for (int j = From; j < NR; ++j) {
      vf x = load(scores + at * L + j * kWidth);
      if (what.cap > 0) x = soften(x, what.cap);
      if (what.key_bias) x = x + addend;
      if (what.plain) x = x + load(extras + at * L + j * kWidth) * kLog2e;
      else if (what.elements) x = add_extra(x, load(extras + at * L + j * kWidth));
      if (what.limits) x = choose((key >= low[j]) & (key <= high[j]), x, splat(-kInf));
      store(scores + at * L + j * kWidth, x);
      top[j] = larger(x, top[j]);
    }
  }
}

// Pseudo-keys: the group's size, its bias and, for iso, the spread of its keys. The lengths are, as the slopes
// are, in units in which the spread's addend min(s * sqrt(n - 1), s * s / 2) reads s * min(slope, s).
template <int NR>
static void change_pseudo(const PanelJob& job, const Panel& panel, int64_t begin, int64_t count, float cap,
                          float* scores, vf (&top)[NR]) {
  constexpr int L = NR * kWidth;
  const PseudoKeys& p = job.pseudo;
  vf spread[NR];
  for (int j = 0; j < NR; ++j) top[j] = splat(-kInf), spread[j] = p.deviation ? load(panel.length + j * kWidth) : vf{};
  for (int64_t at = 0; at < count; ++at) {
    const vf addend = splat(p.addend[begin + at]);
    const float deviation = p.deviation ? p.deviation[begin + at] : 0.0f;
    const vf slope = splat(p.deviation ? p.slope[begin + at] : 0.0f);
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) {
      vf x = load(scores + at * L + j * kWidth);
      if (cap > 0) x = soften(x, cap);
      x = x + addend;
      if (p.row_addend) {
        const float* row = p.row_addend + (begin + at) * p.row_stride + panel.first + j * kWidth;
        x = x + load_some(row, panel.count - j * kWidth);
      }
      if (p.deviation) {
        const vf s = spread[j] * deviation;
        x = x + s * smaller(slope, s);
      }
      store(scores + at * L + j * kWidth, x);
      top[j] = larger(x, top[j]);
    }
  }
}
