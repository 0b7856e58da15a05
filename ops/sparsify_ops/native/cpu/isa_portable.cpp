// The kernel for processors without an x86-64 variant of their own.
#define SPARSIFY_WIDTH 4
#define SPARSIFY_NR 4
#define SPARSIFY_MR 4
#define SPARSIFY_MR2 8
#define SPARSIFY_MR1 8
#define SPARSIFY_GROUP 128
#include "isa.inl"

namespace sparsify {
const Isa kIsaPortable = SPARSIFY_ISA("portable");
}
