// The kernel for x86-64 machines of level avx512 that multiply bfloat16, where that is asked for.
#define SPARSIFY_WIDTH 16
#define SPARSIFY_NR 4
#define SPARSIFY_MR 4
#define SPARSIFY_MR2 8
#define SPARSIFY_MR1 8
#define SPARSIFY_GROUP 128
#define SPARSIFY_PAIRS 1
#include "isa.inl"

namespace sparsify {
const Isa kIsaAvx512Bf16 = SPARSIFY_ISA("avx512bf16");
}
