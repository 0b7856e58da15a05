// Chooses the instruction set once per process.
#pragma once
#include "panel.h"

namespace sparsify {

// Throws Failure when SPARSIFY_CPU names a level that does not exist or that this machine lacks.
const Isa& chosen_isa();

}  // namespace sparsify
