// Everything that may happen to a score between the product and the softmax: softcap, biases, residual terms and masks.
// Only groups that need some of it come here; the score then is changed in place and its maximum taken again.

// log2(e) times a natural logit, staying finite where the logit is: a mask of -FLT_MAX must not turn into -inf.
INLINE vf to_log2(vf x) {
  const vi infinite = (x == splat(-kInf)) | (x == splat(kInf));
  return choose(infinite, x, smaller(splat(kBound), larger(splat(-kBound), x)) * kLog2e);
}
INLINE float to_log2(float x) { return to_log2(splat(x))[0]; }

// Whether kWidth keys are neighbours, so that one load reads them all.
INLINE bool is_run(const int32_t* keys, int64_t count) {
  return count >= kWidth && keys[kWidth - 1] - keys[0] == kWidth - 1;
}

// A row's biases for up to kWidth keys, -inf behind them.
INLINE vf row_bias(Element element, const void* bias, int64_t step, const int32_t* keys, int64_t count, bool run) {
  if (run && step == 1) return load_elements(element, bias, keys[0], kWidth);
  alignas(64) float x[kWidth];
  for (int64_t i = 0; i < kWidth; ++i) x[i] = i < count ? float_at(element, bias, keys[i] * step) : -kInf;
  return load(x);
}

// Bias and mask of kWidth keys for one row, as one natural logit: -inf where the key is forbidden.
INLINE vf row_extras(const PanelJob& job, const Row& row, const int32_t* keys, int64_t count, bool run) {
  vf x = vf{};
  if (job.biased) x = row_bias(job.element, row.bias, job.bias_key, keys, count, run);
  if (job.masked) {
    vb allowed = vb{};
    if (run && job.mask_key == 1) {
      __builtin_memcpy(&allowed, row.mask + keys[0], kWidth);
    } else {
      for (int64_t i = 0; i < count; ++i) allowed[i] = row.mask[keys[i] * job.mask_key];
    }
    x = choose(__builtin_convertvector(allowed, vi) != 0, x, splat(-kInf));
  }
  return x;
}

INLINE bool any_of(vi x) {
  int any = 0;
  for (int i = 0; i < kWidth; ++i) any |= x[i];
  return any != 0;
}

// What the queries are multiplied by, and log2(e) * softcap, or 0.
struct Scaling {
  float factor, cap;
};
INLINE Scaling scaling_of(const PanelJob& job) {
  if (job.softcap > 0) return {2.0f * kLog2e * (job.scale / job.softcap), job.softcap * kLog2e};
  return {job.scale * kLog2e, 0.0f};
}

// A sink is a logit that was there before the first key and has no value.
INLINE void start_row(float sink, float& top, float& total) {
  top = -kInf, total = 0.0f;
  if (sink == -kInf) return;
  const bool is_nan = sink != sink;
  if (!is_nan) top = to_log2(sink);
  total = is_nan ? sink : 1.0f;
}

// The scale folded into the queries turned a softcapped score into 2 * log2(e) * scale * q.k / softcap.
INLINE vf soften(vf x, float cap) {
  const vf e = exp2v(smaller(splat(126.0f), x));
  return splat(cap) - (2.0f * cap) / (e + 1.0f);
}

// A score with what row_extras gave.
INLINE vf add_extra(vf x, vf extra) {
  const vf bounded = larger(splat(-kBound), smaller(splat(kBound), extra));
  return choose(extra == splat(-kInf), splat(-kInf), x + bounded * kLog2e);
}

INLINE vi is_plain(vf extra) { return (vf)((vi)extra & 0x7fffffff) < splat(kBound); }

// What is known of the extras of a group: all forbid, some need care, or all are numbers to add.
enum class Extras { none, some, plain };

// Which of the changes a group of real keys needs.
struct Changes {
  bool limits, elements, key_bias;
  float cap;  // log2(e) * softcap, or 0
  static constexpr bool plain = false;
};
// The common ones, known when compiling.
template <bool Limits, bool Elements, bool Plain>
struct Only {
  static constexpr bool limits = Limits, elements = Elements, plain = Plain, key_bias = false;
  static constexpr float cap = 0;
};
using OnlyLimits = Only<true, false, false>;
using OnlyElements = Only<false, true, false>;
using OnlyPlain = Only<false, true, true>;
