// bfloat16 arithmetic: one instruction multiplies pairs of numbers and adds both products to a float32 sum. Pairs are
// handed on as words the size of a float: two components of a query or a key, the weights of two keys, or a component
// of two keys' values. Scores and outputs stay float32. The instruction takes and gives subnormal numbers as zeros.

constexpr int64_t kTogether = 2;

INLINE vf add_products(vf sum, vf a, float word) {
  return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)_mm512_set1_ps(word));
}

// Rounds to nearest even: the numbers of `low`, then those of `high`.
INLINE vf round_run(vf low, vf high) { return (vf)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low); }

// The pair of each lane.
INLINE vf round_pairs(vf even, vf odd) {
  const __m512i order =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                       18, 2, 17, 1, 16, 0);
  return (vf)_mm512_maskz_permutexvar_epi16(0xffffffff, order, (__m512i)round_run(even, odd));
}

// scores[key][lane] becomes 2^(score - top), then scores[pair][lane] the rounded pair of them.
template <int NR, int From>
INLINE void weigh(float* scores, int64_t count, const vf (&top)[NR], vf (&total)[NR]) {
  constexpr int L = NR * kWidth;
  if (count % 2) {
    for (int j = From; j < NR; ++j) store(scores + count * L + j * kWidth, splat(-kInf));
  }
#pragma GCC unroll 2
  for (int64_t key = 0; key < count; key += 2) {
#pragma GCC unroll 4
    for (int j = From; j < NR; ++j) {
      const vf even = exp2v(load(scores + key * L + j * kWidth) - top[j]);
      const vf odd = exp2v(load(scores + (key + 1) * L + j * kWidth) - top[j]);
      store(scores + key / 2 * L + j * kWidth, round_pairs(even, odd));
      total[j] += even + odd;
    }
  }
}

// The queries of a panel, qt[d][lane], become qt[pair][lane].
template <int NR>
INLINE void seal_queries(float* qt, int64_t dim) {
  constexpr int L = NR * kWidth;
  for (int64_t d = 0; d < dim; d += 2) {
    for (int j = 0; j < NR; ++j) {
      const vf odd = d + 1 < dim ? load(qt + (d + 1) * L + j * kWidth) : vf{};
      store(qt + d / 2 * L + j * kWidth, round_pairs(load(qt + d * L + j * kWidth), odd));
    }
  }
}

INLINE void pair_key(Element element, const void* row, int64_t dim, float* to) {
  const float* floats = static_cast<const float*>(row);
  int64_t d = 0;
  if (element == Element::f32) {
    for (; d + 2 * kWidth <= dim; d += 2 * kWidth) store(to + d / 2, round_run(load(floats + d), load(floats + d + kWidth)));
  }
  for (; d < dim; d += 2 * kWidth) {
    const vf low = load_elements(element, row, d, dim - d);
    const int64_t left = dim - d - kWidth;
    store(to + d / 2, round_run(low, left > 0 ? load_elements(element, row, d + kWidth, left) : vf{}));
  }
}

INLINE void pair_values(Element element, const void* even, const void* odd, int64_t dim, float* to) {
  const float *x = static_cast<const float*>(even), *y = static_cast<const float*>(odd);
  int64_t d = 0;
  if (element == Element::f32 && odd) {
    for (; d + kWidth <= dim; d += kWidth) store(to + d, round_pairs(load(x + d), load(y + d)));
  }
  for (; d < dim; d += kWidth) {
    const vf last = odd ? load_elements(element, odd, d, dim - d) : vf{};
    store(to + d, round_pairs(load_elements(element, even, d, dim - d), last));
  }
}

struct KeyRow {
  const void *k, *v;
};

// Copies `count` keys as words and lists them; row(i) gives the pointers of one.
template <class Rows>
INLINE void pair_rows(const PanelJob& job, Element element, int64_t count, const Group& group, const Rows& row) {
  const int64_t k_step = whole(job.qk_dim), v_step = whole(job.v_dim);
  for (int64_t i = 0; i < count; i += 2) {
    const KeyRow even = row(i), odd = i + 1 < count ? row(i + 1) : KeyRow{};
    pair_key(element, even.k, job.qk_dim, group.key_rows + i * k_step);
    if (odd.k) pair_key(element, odd.k, job.qk_dim, group.key_rows + (i + 1) * k_step);
    pair_values(element, even.v, odd.v, job.v_dim, group.value_rows + i / 2 * v_step);
  }
  for (int64_t i = 0; i < kListed; ++i) {
    const int64_t key = i < count ? i : count - 1, pair = 2 * i < count ? i : (count - 1) / 2;
    group.keys[i] = group.key_rows + key * k_step;
    group.values[i] = group.value_rows + pair * v_step;
  }
}

INLINE void list_group(const PanelJob& job, const int32_t* keys, int64_t left, int64_t count, const Group& group) {
  const int64_t size = bytes_of(job.element), k_bytes = job.qk_dim * size, v_bytes = job.v_dim * size;
  const char* k = static_cast<const char*>(job.k);
  const char* v = static_cast<const char*>(job.v);
  pair_rows(job, job.element, count, group, [=](int64_t i) {
    if (i + 8 < left) fetch_row(k + keys[i + 8] * k_bytes, k_bytes), fetch_row(v + keys[i + 8] * v_bytes, v_bytes);
    return KeyRow{k + keys[i] * k_bytes, v + keys[i] * v_bytes};
  });
}

INLINE void list_pseudo(const PanelJob& job, int64_t at, int64_t count, const Group& group) {
  const PseudoKeys& p = job.pseudo;
  pair_rows(job, Element::f32, count, group, [&](int64_t i) { return KeyRow{p.k[at + i], p.v[at + i]}; });
}
