// What the instruction-set specific half of the kernel offers to the portable half: one table of functions, plain data.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "element.h"

namespace sparsify {

// Left-out groups of keys that answer as one key each. Logit addends are in units of log2, as all scores inside are.
struct PseudoKeys {
  const float* const* k;      // one mean key row each
  const float* const* v;      // one mean value row each
  const float* addend;        // log2(n) plus the log-mean-exp of a bias that is equal for all rows
  const float* row_addend;    // [count][row_stride]: the same for a bias that differs between rows, or null
  int64_t row_stride;
  const float* deviation;     // iso: sqrt(variance); null for plain means
  const float* slope;         // iso: sqrt(2 * log2(e) * (n - 1))
  int64_t count;
};

// One query row: where it lies, where its result goes, and what is its own. Rows of several heads may stand together.
struct Row {
  const void* q;              // [qk_dim]
  void* y;                    // [v_dim]
  const uint8_t* mask;        // of key 0, or null
  const void* bias;           // likewise, natural units
  int32_t low, high;          // the first and the last key it may see
  float sink;                 // a natural logit, -inf for none
};

// The softmax of a row over a part of its keys, to be merged with the other parts: y is top's, not yet divided.
struct Part {
  float* y;                   // [rows][v_dim]
  float* top;                 // [rows], in log2 units
  float* total;               // [rows]
};

// Query rows that share an ascending list of keys of one key-value head.
struct PanelJob {
  Element element;            // of q, k, v, y and bias
  const void* k;              // [keys][qk_dim]
  const void* v;              // [keys][v_dim]
  int64_t qk_dim, v_dim;
  const Row* rows;
  int64_t row_count;
  const int32_t* keys;
  int64_t count;
  PseudoKeys pseudo;
  float scale, softcap;
  const float* key_bias;      // per key, in log2 units, or null
  bool limited, masked, biased;  // whether the rows' low and high, mask, bias mean anything
  int64_t mask_key, bias_key; // strides from key to key
  const Part* part;           // where an unfinished softmax goes; null to finish it into the rows' y
};

// A sum of rows, and of their squared distances, about a shift.
struct Moments {
  Element element;
  const void* rows;
  int64_t dim;
  const int32_t* keys;
  int64_t count;
  const float* shift;  // null for zero
};

// For each group of keys and each row, log2 of the mean of exp(bias) over the group: [group][row].
struct RowBiases {
  Element element;
  const void* bias;
  int64_t row_step, key_step, rows;
  const int32_t* keys;  // of all groups, one after the other
  const int32_t* ends;  // of each group among them
  int64_t groups;
};

// A block of query rows and all keys of a head, or what stands in for them: how much of its softmax each row gives to
// groups of neighbouring keys, added up over the rows.
struct MassJob {
  Element element;          // of the queries
  const void* q;            // [rows][dim]
  int64_t rows, dim;
  const float* keys;        // [count][dim]
  int64_t count;
  const float* row_factor;  // on a row's products, or null
  const float* key_factor;  // on a key's products, or null
  const float* key_addend;  // to a key's logits, in log2 units, or null
  const int32_t* seen;      // how many keys each row sees, from the first one; null for all
  int64_t group;            // keys per group
  float* mass;              // [groups]
  float* spread;            // [groups]: of the rows' sum(p^2) - sum(p)^2 / n over the n keys seen; or null
};

struct Isa {
  const char* name;
  int64_t rows;  // how many at a time suit, where nothing else decides
  size_t (*scratch_bytes)(const PanelJob& job);
  void (*attend)(const PanelJob& job, void* scratch);  // scratch: 64-byte aligned
  float (*moments)(const Moments& what, float* sum);   // overwrites sum; about a shift, returns the summed squares
  void (*row_biases)(const RowBiases& what, float* out);
  void (*from_float)(Element, const float* from, void* to, int64_t count);
  size_t (*mass_bytes)(const MassJob& job);
  void (*mass)(const MassJob& job, void* scratch);     // likewise aligned
};

#if defined(__x86_64__) || defined(_M_X64)
extern const Isa kIsaV2, kIsaAvx2, kIsaAvx512, kIsaAvx512Bf16;
#else
extern const Isa kIsaPortable;
#endif

}  // namespace sparsify
