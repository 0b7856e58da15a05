// KernelInfo: tells which instruction set is in use, as ASCII. Its input is there because an operator needs one.
#include <string.h>

#include "custom_op.h"
#include "dispatch.h"

namespace sparsify {

namespace {

constexpr const char* kName = "KernelInfo";

struct Kernel {
  Runtime ort;
  const Isa& isa;
};

OrtStatus* ORT_CALL create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo*, void** kernel) {
  const bool bfloat16 = static_cast<const Operator*>(op)->bfloat16;
  return guarded(api, kName, [&] { *kernel = new Kernel{Runtime(api), chosen_isa(bfloat16)}; });
}

OrtStatus* ORT_CALL compute(void* kernel, OrtKernelContext* context) {
  const Kernel& k = *static_cast<Kernel*>(kernel);
  return guarded(k.ort.api(), kName, [&] {
    const size_t length = strlen(k.isa.name);
    memcpy(output(k.ort, context, 0, {static_cast<int64_t>(length)}), k.isa.name, length);
  });
}

void ORT_CALL destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

}  // namespace

Operator info_operator(const OrtApi* api) {
  Operator op = common(api, kOrtUint8);
  op.GetName = [](const OrtCustomOp*) { return kName; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetInputType = [](const OrtCustomOp*, size_t) -> int { return kOrtInt64; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetOutputType = [](const OrtCustomOp*, size_t) -> int { return kOrtUint8; };
  op.CreateKernelV2 = create;
  op.KernelComputeV2 = compute;
  op.KernelDestroy = destroy;
  return op;
}

}  // namespace sparsify
