// Sums over groups of keys, from which the residual's pseudo-keys are made.

// The rows of a group are too few for the processor to see where they lead; most often the next group lies behind.
INLINE void fetch_ahead(const Moments& what, int64_t key, int64_t d, int vectors) {
  constexpr int64_t kRows = 32;
  const char* row = static_cast<const char*>(element_at(what.element, what.rows, (key + kRows) * what.dim + d));
  for (int64_t at = 0; at < vectors * kWidth * bytes_of(what.element); at += 64) __builtin_prefetch(row + at);
}

// Of N vectors of components from d on; several sums at a time hide the latency of an addition.
template <int N, bool Shifted>
INLINE void moments_at(const Moments& what, int64_t d, int64_t count, float* sum, vf& squares) {
  vf total[N], shift[N], square[N];
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) {
    total[j] = square[j] = vf{};
    shift[j] = Shifted ? load_some(what.shift + d + j * kWidth, count) : vf{};
  }
  for (int64_t i = 0; i < what.count; ++i) {
    if (!Shifted) fetch_ahead(what, what.keys[i], d, N);
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const vf x = load_elements(what.element, what.rows, what.keys[i] * what.dim + d + j * kWidth, count) - shift[j];
      total[j] += x;
      if (Shifted) square[j] += x * x;
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) {
    store_some(sum + d + j * kWidth, total[j], count);
    squares += square[j];
  }
}

template <bool Shifted>
INLINE float moments_of(const Moments& what, float* sum) {
  vf squares = vf{};
  int64_t d = 0;
  for (; d + 4 * kWidth <= what.dim; d += 4 * kWidth) moments_at<4, Shifted>(what, d, kWidth, sum, squares);
  for (; d + kWidth <= what.dim; d += kWidth) moments_at<1, Shifted>(what, d, kWidth, sum, squares);
  if (d < what.dim) moments_at<1, Shifted>(what, d, what.dim - d, sum, squares);
  return sum_of(squares);
}

static float moments(const Moments& what, float* sum) {
  return what.shift ? moments_of<true>(what, sum) : moments_of<false>(what, sum);
}

struct Biased {
  const int32_t* keys;
  int64_t count;
};

// Biases of kWidth rows, from rows to lanes: out[i] holds those of key at + i.
INLINE int64_t turn_biases(const RowBiases& what, const Biased& group, int64_t row, int64_t at, vf (&out)[kWidth]) {
  const int64_t n = group.count - at < kWidth ? group.count - at : kWidth;
  const int32_t* keys = group.keys + at;
  const bool run = is_run(keys, n);
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    const void* bias = element_at(what.element, what.bias, (row + i) * what.row_step);
    out[i] = row + i < what.rows ? row_bias(what.element, bias, what.key_step, keys, n, run) : vf{};
  }
  transpose(out);
  return n;
}

// For kWidth rows, log2 of the mean of exp(bias) over a group, shifted by the largest so that it can not overflow.
static void log_mean_exp(const RowBiases& what, const Biased& group, int64_t row, float* out) {
  vf x[kWidth], top = splat(-kInf), sum = vf{};
  for (int64_t at = 0; at < group.count; at += kWidth) {
    const int64_t n = turn_biases(what, group, row, at, x);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kWidth; ++i) top = larger(i < n ? x[i] : top, top);
  }
  const vf shift = choose(top == splat(-kInf), vf{}, top);  // nothing but NaN: the sum will say so
  for (int64_t at = 0; at < group.count; at += kWidth) {
    const int64_t n = group.count > kWidth ? turn_biases(what, group, row, at, x) : group.count;
#pragma GCC unroll 16
    for (int64_t i = 0; i < kWidth; ++i) sum += i < n ? exp2v((x[i] - shift) * kLog2e) : vf{};
  }
  const vf base = add_extra(vf{}, shift);  // in bounds, as those of kept keys are
  for (int64_t i = 0; i < kWidth && row + i < what.rows; ++i) {
    out[i] = base[i] + __builtin_log2f(sum[i] / (float)group.count);
  }
}

static void row_biases(const RowBiases& what, float* out) {
  for (int64_t row = 0; row < what.rows; row += kWidth) {
    int32_t begin = 0;
    for (int64_t i = 0; i < what.groups; ++i) {
      log_mean_exp(what, {what.keys + begin, what.ends[i] - begin}, row, out + i * what.rows + row);
      begin = what.ends[i];
    }
  }
}
