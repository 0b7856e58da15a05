// Everything that may happen to a score between the product and the softmax: softcap, biases, residual terms and masks.
// Only groups that need some of it come here; the score then is changed in place and its maximum taken again.

// log2(e) times a natural logit, staying finite where the logit is: a mask of -FLT_MAX must not turn into -inf.
INLINE vf to_log2(vf x) {
  const vf limit = splat(3.4028234e38f);
  const vi infinite = (x == splat(-kInf)) | (x == splat(kInf));
  return choose(infinite, x, smaller(limit, larger(-limit, x * kLog2e)));
}
INLINE float to_log2(float x) { return to_log2(splat(x))[0]; }

// A row's biases for up to kWidth keys, -inf behind them.
INLINE vf row_bias(const float* bias, int64_t step, const int32_t* keys, int64_t count, bool run) {
  if (run && step == 1) return load(bias + keys[0]);
  vf x = splat(-kInf);
  for (int64_t i = 0; i < count; ++i) x[i] = bias[keys[i] * step];
  return x;
}

// Whether kWidth keys are neighbours, so that one load reads them all.
INLINE bool is_run(const int32_t* keys, int64_t count) {
  return count >= kWidth && keys[kWidth - 1] - keys[0] == kWidth - 1;
}

// Bias and mask of kWidth keys for one row, as one addend in log2 units: -inf where the key is forbidden.
INLINE vf row_extras(const PanelJob& job, int64_t row, const int32_t* keys, int64_t count, bool run) {
  vf x = vf{};
  if (job.bias) x = to_log2(row_bias(job.bias + row * job.bias_row, job.bias_key, keys, count, run));
  if (job.mask) {
    const uint8_t* m = job.mask + row * job.mask_row;
    vb allowed = vb{};
    if (run && job.mask_key == 1) {
      __builtin_memcpy(&allowed, m + keys[0], kWidth);
    } else {
      for (int64_t i = 0; i < count; ++i) allowed[i] = m[keys[i] * job.mask_key];
    }
    x = choose(__builtin_convertvector(allowed, vi) != 0, x, splat(-kInf));
  }
  return x;
}

// out[key][lane] for a group of keys. Says whether any of them is allowed for any row.
template <int NR>
static bool element_extras(const PanelJob& job, const int32_t* keys, int64_t count, float* out) {
  constexpr int L = NR * kWidth;
  vi allowed = vi{};
  for (int64_t at = 0; at < count; at += kWidth) {
    const int64_t n = count - at < kWidth ? count - at : kWidth;
    const bool run = is_run(keys + at, n);
    for (int j = 0; j < NR; ++j) {
      vf r[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        const int64_t row = j * kWidth + i;
        r[i] = row < job.rows ? row_extras(job, row, keys + at, n, run) : splat(-kInf);
        allowed |= r[i] != splat(-kInf);
      }
      transpose(r);
      for (int64_t i = 0; i < n; ++i) store(out + (at + i) * L + j * kWidth, r[i]);
    }
  }
  int any = 0;
  for (int i = 0; i < kWidth; ++i) any |= allowed[i];
  return any != 0;
}

// Biases lie a whole row apart, which no hardware prefetcher follows.
INLINE void prefetch_extras(const PanelJob& job, const int32_t* keys, int64_t count) {
  if (count <= 0 || keys[count - 1] - keys[0] >= 2 * count) return;
  for (int64_t row = 0; row < job.rows; ++row) {
    for (int64_t at = 0; job.bias && at < count; at += 16) {
      __builtin_prefetch(job.bias + row * job.bias_row + keys[at] * job.bias_key, 0, 2);
    }
    for (int64_t at = 0; job.mask && at < count; at += 64) {
      __builtin_prefetch(job.mask + row * job.mask_row + keys[at] * job.mask_key, 0, 2);
    }
  }
}

// The scale folded into the queries turned a softcapped score into 2 * log2(e) * scale * q.k / softcap.
INLINE vf soften(vf x, float cap) {
  const vf e = exp2v(smaller(splat(126.0f), x));
  return splat(cap) - (2.0f * cap) / (e + 1.0f);
}

// Which of the changes a group of real keys needs.
struct Changes {
  bool limits, elements, key_bias;
  float cap;  // log2(e) * softcap, or 0
};

template <int NR>
static void change_keys(const PanelJob& job, const Changes& what, const int32_t* keys, int64_t count,
                        const float* extras, float* scores, vf (&top)[NR]) {
  constexpr int L = NR * kWidth;
  vi low[NR] = {}, high[NR] = {};
  for (int j = 0; j < NR; ++j) {
    top[j] = splat(-kInf);
    for (int i = 0; i < kWidth; ++i) {
      const int64_t row = j * kWidth + i;
      const bool limited = what.limits && row < job.rows;
      low[j][i] = limited ? job.low[row] : INT32_MIN;
      high[j][i] = limited ? job.high[row] : INT32_MAX;
    }
  }
  for (int64_t at = 0; at < count; ++at) {
    const vi key = vi{} + keys[at];
    const float addend = what.key_bias ? job.key_bias[keys[at]] : 0.0f;
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) {
      vf x = load(scores + at * L + j * kWidth);
      if (what.cap > 0) x = soften(x, what.cap);
      if (what.key_bias) x = x + addend;
      if (what.elements) {
        const vf extra = load(extras + at * L + j * kWidth);
        x = choose(extra == splat(-kInf), splat(-kInf), x + extra);
      }
      if (what.limits) x = choose((key >= low[j]) & (key <= high[j]), x, splat(-kInf));
      store(scores + at * L + j * kWidth, x);
      top[j] = larger(x, top[j]);
    }
  }
}

// Pseudo-keys: the group's size, its bias and, for iso, the spread of its keys. `length` is scale * |q| per lane.
template <int NR>
static void change_pseudo(const PanelJob& job, int64_t begin, int64_t count, float cap, const float* length,
                          float* scores, vf (&top)[NR]) {
  constexpr int L = NR * kWidth;
  const PseudoKeys& p = job.pseudo;
  for (int j = 0; j < NR; ++j) top[j] = splat(-kInf);
  for (int64_t at = 0; at < count; ++at) {
    for (int j = 0; j < NR; ++j) {
      vf x = load(scores + at * L + j * kWidth);
      if (cap > 0) x = soften(x, cap);
      if (p.addend) x = x + p.addend[begin + at];
      if (p.row_addend) {
        const float* row = p.row_addend + (begin + at) * p.row_stride + j * kWidth;
        x = x + load_some(row, job.rows - j * kWidth);
      }
      if (p.deviation) {
        const vf s = load(length + j * kWidth) * p.deviation[begin + at];
        x = x + smaller(s * p.slope[begin + at], 0.5f * s * s) * kLog2e;
      }
      store(scores + at * L + j * kWidth, x);
      top[j] = larger(x, top[j]);
    }
  }
}
