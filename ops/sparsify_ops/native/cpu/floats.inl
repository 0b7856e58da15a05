// float32 arithmetic. pairs.inl has the same for bfloat16, where a word holds two numbers.

constexpr int64_t kTogether = 1;  // numbers in a word

INLINE vf add_products(vf sum, vf a, float word) { return sum + a * word; }

// scores[key][lane] becomes 2^(score - top); their sum is added to total.
template <int NR, int From>
INLINE void weigh(float* scores, int64_t count, const vf (&top)[NR], vf (&total)[NR]) {
  constexpr int L = NR * kWidth;
  vf sum[NR];
#pragma GCC unroll 4
  for (int j = From; j < NR; ++j) sum[j] = vf{};
#pragma GCC unroll 2
  for (int64_t key = 0; key < count; ++key) {
#pragma GCC unroll 4
    for (int j = From; j < NR; ++j) {
      const vf w = exp2v(load(scores + key * L + j * kWidth) - top[j]);
      store(scores + key * L + j * kWidth, w);
      sum[j] += w;
    }
  }
#pragma GCC unroll 4
  for (int j = From; j < NR; ++j) total[j] += sum[j];
}

// Queries are ready as they are.
template <int NR>
INLINE void seal_queries(float*, int64_t) {}

INLINE void list_group(const PanelJob& job, const int32_t* keys, int64_t left, int64_t count, const Group& group) {
  list_keys(job, keys, left, count, group);
}

// Pseudo-keys, whose rows are floats already.
INLINE void list_pseudo(const PanelJob& job, int64_t at, int64_t, const Group& group) {
  const PseudoKeys& p = job.pseudo;
  for (int64_t i = 0; i < kListed; ++i) {
    const int64_t from = at + i < p.count ? at + i : p.count - 1;
    group.keys[i] = p.k[from];
    group.values[i] = p.v[from];
  }
}
