// SparseAttention as ONNX Runtime sees it.
#include "custom_op.h"
#include "dispatch.h"
#include "inputs.h"
#include "shape.h"

namespace sparsify {

namespace {

constexpr const char* kName = "SparseAttention";

struct Kernel {
  Runtime ort;
  const Isa& isa;
  int element;
  Attributes attributes;
};

OrtStatus* ORT_CALL create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  return guarded(api, kName, [&] {
    const Runtime ort(api);
    const Operator& self = *static_cast<const Operator*>(op);
    *kernel = new Kernel{ort, chosen_isa(self.bfloat16), self.element, read_attributes(ort, info)};
  });
}

OrtStatus* ORT_CALL compute(void* kernel, OrtKernelContext* context) {
  const Kernel& k = *static_cast<Kernel*>(kernel);
  return guarded(k.ort.api(), kName, [&] {
    Pool pool{k.ort, context};
    Problem p = read_problem(k.ort, context, k.attributes, k.element);
    if (!p.counts) p.attributes.q_block = k.isa.rows;  // with every block kept their size means nothing
    p.y = output(k.ort, context, 0, {p.sizes.batch, p.sizes.q_heads, p.sizes.q_len, p.sizes.v_dim});
    attend(p, k.isa, pool.loop());
  });
}

void ORT_CALL destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

int ORT_CALL input_type(const OrtCustomOp* op, size_t index) {
  switch (index) {
    case 3: case 4: return kOrtInt32;
    case 5: return kOrtBool;
    case 7: case 9: return kOrtInt64;
    default: return static_cast<const Operator*>(op)->element;
  }
}

OrtStatus* ORT_CALL infer(const OrtCustomOp* self, OrtShapeInferContext* context) {
  const Operator& op = *static_cast<const Operator*>(self);
  return infer_shape(op.api, context);
}

}  // namespace

Operator attention_operator(const OrtApi* api, int element, bool infers) {
  Operator op = common(api, element);
  op.GetName = [](const OrtCustomOp*) { return kName; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{10}; };
  op.GetInputType = input_type;
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t index) -> int {
    return index < 3 ? kOrtRequired : kOrtOptional;
  };
  op.GetOutputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetOutputType = [](const OrtCustomOp* self, size_t) { return static_cast<const Operator*>(self)->element; };
  op.CreateKernelV2 = create;
  op.KernelComputeV2 = compute;
  op.KernelDestroy = destroy;
  if (infers) op.InferOutputShapeFn = infer;
  return op;
}

}  // namespace sparsify
