// The kernel for x86-64 machines of level v2.
#define SPARSIFY_WIDTH 4
#define SPARSIFY_NR 2
#define SPARSIFY_MR 6
#define SPARSIFY_MR2 6
#define SPARSIFY_MR1 8
#define SPARSIFY_GROUP 96
#include "isa.inl"

namespace sparsify {
const Isa kIsaV2 = SPARSIFY_ISA("v2");
}
