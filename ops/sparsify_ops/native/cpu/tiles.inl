// The two matrix products of attention, with query rows in the lanes.
// Queries are transposed once; key and value rows are read where they lie, one broadcast element at a time. So a key is
// nothing but a pointer, and blocks of 64, 16 or 1 key run the same code. Of a panel's NR vectors of lanes, those before
// From are left as they are.

INLINE int64_t words(int64_t count) { return (count + kTogether - 1) / kTogether; }

// Scores of MR keys: out[i][lane] = keys[i] . q[lane], and the running maximum per lane.
// The first to read the rows prefetches the key rows two tiles ahead and this tile's value rows, which a gathered list
// needs and others ignore.
template <int NR, int MR, int From, bool Fetch>
INLINE void score_tile(const float* const* keys, const float* const* values, const float* qt, int64_t depth, float* out,
                       vf (&top)[NR]) {
  constexpr int L = NR * kWidth;
  const float* k[MR];
  vf acc[MR][NR];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
    k[i] = keys[i];
#pragma GCC unroll 4
    for (int j = From; j < NR; ++j) acc[i][j] = vf{};
  }
  for (int64_t d0 = 0; d0 < depth; d0 += 16) {
    const int64_t end = depth - d0 < 16 ? depth : d0 + 16;
    if constexpr (Fetch) {
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        __builtin_prefetch(keys[i + 2 * MR] + d0);
        __builtin_prefetch(values[i] + d0);
      }
    }
    for (int64_t d = d0; d < end; ++d) {
      vf q[NR];
#pragma GCC unroll 4
      for (int j = From; j < NR; ++j) q[j] = load(qt + d * L + j * kWidth);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        const float x = k[i][d];
#pragma GCC unroll 4
        for (int j = From; j < NR; ++j) acc[i][j] = add_products(acc[i][j], q[j], x);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = From; j < NR; ++j) {
      store(out + i * L + j * kWidth, acc[i][j]);
      top[j] = larger(acc[i][j], top[j]);
    }
  }
}

// MR components of the output: ot[d][lane] = keep[lane] * ot[d][lane] + sum over keys of weights[key][lane] * v[key][d]
template <int NR, int MR, int From>
INLINE void value_tile(const float* const* values, int64_t count, const float* weights, float* ot, int64_t d,
                       const vf (&keep)[NR], bool first) {
  constexpr int L = NR * kWidth;
  vf acc[MR][NR];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = From; j < NR; ++j) acc[i][j] = first ? vf{} : load(ot + (d + i) * L + j * kWidth) * keep[j];
  }
#pragma GCC unroll 4
  for (int64_t key = 0; key < count; ++key) {
    const float* v = values[key] + d;
    vf w[NR];
#pragma GCC unroll 4
    for (int j = From; j < NR; ++j) w[j] = load(weights + key * L + j * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const float x = v[i];
#pragma GCC unroll 4
      for (int j = From; j < NR; ++j) acc[i][j] = add_products(acc[i][j], w[j], x);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = From; j < NR; ++j) store(ot + (d + i) * L + j * kWidth, acc[i][j]);
  }
}

// Components left over are taken four at a time, for one by one a tile waits for its own sums: where a tall tile would
// leave two, as with heads of 32 or 128, it yields to two tiles of four.
template <int NR, int MR, int From>
INLINE void add_values(const float* const* values, int64_t count, const float* weights, float* ot, int64_t v_dim,
                       const vf (&keep)[NR], bool first) {
  int64_t d = 0, tall = v_dim / MR * MR;
  if (MR == 6 && v_dim % 6 == 2 && tall) tall -= MR;
  for (; d < tall; d += MR) value_tile<NR, MR, From>(values, count, weights, ot, d, keep, first);
  if constexpr (MR > 4) {
    for (; d + 4 <= v_dim; d += 4) value_tile<NR, 4, From>(values, count, weights, ot, d, keep, first);
  }
  for (; d < v_dim; ++d) value_tile<NR, 1, From>(values, count, weights, ot, d, keep, first);
}
