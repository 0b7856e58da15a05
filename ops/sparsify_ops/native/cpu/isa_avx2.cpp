// The kernel for x86-64 machines of level avx2.
#define SPARSIFY_WIDTH 8
#define SPARSIFY_NR 2
#define SPARSIFY_MR 6
#define SPARSIFY_MR2 6
#define SPARSIFY_MR1 8
#define SPARSIFY_GROUP 72
#include "isa.inl"

namespace sparsify {
const Isa kIsaAvx2 = SPARSIFY_ISA("avx2");
}
