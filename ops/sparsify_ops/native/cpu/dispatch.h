// Chooses the instruction set of a session.
#pragma once
#include "panel.h"

namespace sparsify {

// Throws Failure when SPARSIFY_CPU names a level that does not exist or that this machine lacks.
// Where `bfloat16` is asked for and the processor does not multiply it faster, the answer multiplies float32.
const Isa& chosen_isa(bool bfloat16);

}  // namespace sparsify
