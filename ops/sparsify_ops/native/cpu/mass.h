// One call of MeanKeyMass or QuantizedMass: how much attention blocks of queries are predicted to give to blocks of keys.
#pragma once
#include <stdint.h>

#include "attention.h"
#include "panel.h"
#include "problem.h"

namespace sparsify {

struct MassAttributes {
  int64_t q_block = 64, k_block = 16;
  float scale = 0;
  bool causal = false;
  int64_t bits = 0;  // of a rounded component; 0 for mean keys
};

struct MassProblem {
  MassAttributes attributes;
  Sizes sizes;       // v_dim is not used
  Element element;   // of q and k
  const void *q, *k;
  View<int64_t> offsets;
  float* mass;       // [batch][q_heads][q_blocks][k_blocks]
  float* spread;     // likewise; null for mean keys

  int64_t q_blocks() const { return (sizes.q_len + attributes.q_block - 1) / attributes.q_block; }
  int64_t k_blocks() const { return (sizes.k_len + attributes.k_block - 1) / attributes.k_block; }
  // What queries meet: one stand-in per block, or every key.
  bool rounds() const { return attributes.bits > 0; }
  int64_t stand_ins() const { return rounds() ? sizes.k_len : k_blocks(); }
};

// Throws Failure when there is not enough memory.
void predict_mass(const MassProblem&, const Isa&, const Loop&);

}  // namespace sparsify
