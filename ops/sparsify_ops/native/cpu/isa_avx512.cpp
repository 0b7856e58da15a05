// The kernel for x86-64 machines of level avx512.
#define SPARSIFY_WIDTH 16
#define SPARSIFY_NR 4
#define SPARSIFY_MR 4
#define SPARSIFY_MR2 8
#define SPARSIFY_MR1 8
#define SPARSIFY_GROUP 128
#include "isa.inl"

namespace sparsify {
const Isa kIsaAvx512 = SPARSIFY_ISA("avx512");
}
