// Sums over groups of keys, from which the residual's pseudo-keys are made.

static float moments(const Moments& what, float* sum) {
  vf squares = vf{};
  for (int64_t d = 0; d < what.dim; d += kWidth) {
    const int64_t n = what.dim - d < kWidth ? what.dim - d : kWidth;
    vf total = vf{};
    if (!what.shift) {
      for (int64_t i = 0; i < what.count; ++i) {
        total += load_elements(what.element, what.rows, what.keys[i] * what.dim + d, n);
      }
    } else {
      const vf shift = load_some(what.shift + d, n);
      for (int64_t i = 0; i < what.count; ++i) {
        const vf x = load_elements(what.element, what.rows, what.keys[i] * what.dim + d, n) - shift;
        total += x;
        squares += x * x;
      }
    }
    store_some(sum + d, total, n);
  }
  return sum_of(squares);
}

// log2 of the mean of exp(bias) over some keys, shifted by the largest so that it can not overflow.
static float log_mean_exp(Element element, const void* bias, int64_t step, const int32_t* keys, int64_t count) {
  vf top = splat(-kInf), sum = vf{};
  for (int64_t at = 0; at < count; at += kWidth) {
    const int64_t n = count - at < kWidth ? count - at : kWidth;
    top = larger(row_bias(element, bias, step, keys + at, n, is_run(keys + at, n)), top);
  }
  float shift = -kInf, total = 0.0f;
  for (int i = 0; i < kWidth; ++i) shift = top[i] > shift ? top[i] : shift;
  if (shift == -kInf) shift = 0.0f;  // nothing but NaN: the sum will say so
  for (int64_t at = 0; at < count; at += kWidth) {
    const int64_t n = count - at < kWidth ? count - at : kWidth;
    const vf x = row_bias(element, bias, step, keys + at, n, is_run(keys + at, n));
    sum += exp2v((x - shift) * kLog2e);
  }
  for (int i = 0; i < kWidth; ++i) total += sum[i];
  return shift * kLog2e + __builtin_log2f(total / (float)count);
}

static void row_biases(const RowBiases& what, float* out) {
  for (int64_t row = 0; row < what.rows; ++row) {
    const void* bias = element_at(what.element, what.bias, row * what.row_step);
    out[row] = log_mean_exp(what.element, bias, what.key_step, what.keys, what.count);
  }
}
