// What the instruction-set specific half of the kernel offers to the portable half: one table of functions, plain data.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace sparsify {

// Left-out groups of keys that answer as one key each. Logit addends are in units of log2, as all scores inside are.
struct PseudoKeys {
  const float* const* k;      // one mean key row each
  const float* const* v;      // one mean value row each
  const float* addend;        // log2(n) plus the log-mean-exp of a bias that is equal for all rows
  const float* row_addend;    // [count][row_stride]: the same for a bias that differs between rows, or null
  int64_t row_stride;
  const float* deviation;     // iso: sqrt(variance); null for plain means
  const float* slope;         // iso: sqrt(n - 1)
  int64_t count;
};

// Consecutive query rows of one head against an ascending list of keys.
struct PanelJob {
  const float* q;             // [rows][qk_dim]
  const float* k;             // the head's keys and values, rows contiguous
  const float* v;
  float* y;                   // [rows][v_dim]
  int64_t rows, qk_dim, v_dim;
  const int32_t* keys;
  int64_t count;
  PseudoKeys pseudo;
  float scale, softcap, sink; // sink: a natural logit, -inf for none
  const float* key_bias;      // per key, in log2 units, or null
  const int32_t* low;         // per row: the first and the last key it may see, or null
  const int32_t* high;
  int32_t safe_low, safe_high;  // keys in [safe_low, safe_high] are inside the limits of every row
  const uint8_t* mask;        // element (row, key) at row * mask_row + key * mask_key, or null
  int64_t mask_row, mask_key;
  const float* bias;          // likewise, natural units, or null
  int64_t bias_row, bias_key;
};

// A sum of rows, and of their squared distances, about a shift.
struct Moments {
  const float* rows;
  int64_t dim;
  const int32_t* keys;
  int64_t count;
  const float* shift;  // null for zero
};

// For each row, log2 of the mean of exp(bias) over some keys.
struct RowBiases {
  const float* bias;
  int64_t row_step, key_step, rows;
  const int32_t* keys;
  int64_t count;
};

struct Isa {
  const char* name;
  int64_t lanes;  // the most rows in a panel
  size_t (*scratch_bytes)(int64_t qk_dim, int64_t v_dim);
  void (*attend)(const PanelJob& job, void* scratch);  // scratch: 64-byte aligned
  float (*moments)(const Moments& what, float* sum);   // overwrites sum, returns the summed squares
  void (*row_biases)(const RowBiases& what, float* out);
  void (*half_to_float)(const uint16_t* from, float* to, int64_t count);
  void (*bfloat_to_float)(const uint16_t* from, float* to, int64_t count);
  void (*float_to_half)(const float* from, uint16_t* to, int64_t count);
  void (*float_to_bfloat)(const float* from, uint16_t* to, int64_t count);
};

#if defined(__x86_64__) || defined(_M_X64)
extern const Isa kIsaV2, kIsaAvx2, kIsaAvx512;
#else
extern const Isa kIsaPortable;
#endif

}  // namespace sparsify
