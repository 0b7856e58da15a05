// The keys of one softmax group: pointers to their rows, as floats. A key row is read where it lies, unless it is in
// half precision or to be: then the group's rows are converted once for all panels of query rows that look at them.

constexpr int64_t kGroup = SPARSIFY_GROUP;  // keys per softmax group; a multiple of every tile's height
constexpr int64_t kAhead = 32;              // pointers beyond a group that tiles and prefetches look at
constexpr int64_t kListed = kGroup + kAhead;

struct Group {
  const float** keys;    // [kListed]
  const float** values;  // [kListed]
  float* key_rows;       // [kGroup][whole vectors] of converted rows, or null
  float* value_rows;
};

INLINE int64_t whole(int64_t dim) { return (dim + kWidth - 1) / kWidth * kWidth; }

// Whether rows must be copied: half precision is, what becomes words of pairs is, and so are rows that end amid a
// vector where vectors run along them.
INLINE bool copies(const PanelJob& job, bool along) {
  return job.element != Element::f32 || (along ? job.qk_dim % kWidth || job.v_dim % kWidth : SPARSIFY_PAIRS);
}

INLINE int64_t group_floats(const PanelJob& job, bool along) {
  return copies(job, along) ? kGroup * (whole(job.qk_dim) + whole(job.v_dim)) : 0;
}

INLINE float* carve_group(const PanelJob& job, bool along, float* at, Group& group) {
  const bool copied = copies(job, along);
  group.key_rows = copied ? at : nullptr;
  group.value_rows = copied ? at + kGroup * whole(job.qk_dim) : nullptr;
  at += group_floats(job, along);
  group.keys = reinterpret_cast<const float**>(at);
  group.values = group.keys + kListed;
  return at + 2 * kListed * sizeof(float*) / sizeof(float);
}

INLINE void fetch_row(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
}

// Converts the rows of `count` keys, and asks early for those a little further on.
INLINE void copy_rows(const PanelJob& job, const int32_t* keys, int64_t left, int64_t count, const Group& group) {
  const int64_t size = bytes_of(job.element), k_bytes = job.qk_dim * size, v_bytes = job.v_dim * size;
  const char* k = static_cast<const char*>(job.k);
  const char* v = static_cast<const char*>(job.v);
  for (int64_t i = 0; i < count; ++i) {
    if (i + 8 < left) fetch_row(k + keys[i + 8] * k_bytes, k_bytes), fetch_row(v + keys[i + 8] * v_bytes, v_bytes);
    widen_row(job.element, k + keys[i] * k_bytes, job.qk_dim, group.key_rows + i * whole(job.qk_dim));
    widen_row(job.element, v + keys[i] * v_bytes, job.v_dim, group.value_rows + i * whole(job.v_dim));
  }
}

// Pointers to `count` rows of a list with `left` keys from here on. Behind them come the rows of later keys, which are
// prefetched, and behind the list's end its last row: tiles may read those, but nothing depends on them.
INLINE void list_keys(const PanelJob& job, const int32_t* keys, int64_t left, int64_t count, const Group& group) {
  if (group.key_rows) {
    copy_rows(job, keys, left, count, group);
    for (int64_t i = 0; i < kListed; ++i) {
      const int64_t row = i < count ? i : count - 1;
      group.keys[i] = group.key_rows + row * whole(job.qk_dim);
      group.values[i] = group.value_rows + row * whole(job.v_dim);
    }
    return;
  }
  const float* k = static_cast<const float*>(job.k);
  const float* v = static_cast<const float*>(job.v);
  const int64_t real = left < kListed ? left : kListed;
  for (int64_t i = 0; i < real; ++i) {
    group.keys[i] = k + keys[i] * job.qk_dim;
    group.values[i] = v + keys[i] * job.v_dim;
  }
  for (int64_t i = real; i < kListed; ++i) {
    group.keys[i] = group.keys[real - 1];
    group.values[i] = group.values[real - 1];
  }
}
