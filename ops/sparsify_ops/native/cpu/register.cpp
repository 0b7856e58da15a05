// The door to ONNX Runtime: declares our operators to it and turns every failure into a status with a sentence.
#include <stdio.h>
#include <string.h>

#include <exception>
#include <new>
#include <string>

#include "dispatch.h"
#include "inputs.h"
#include "shape.h"

namespace sparsify {

namespace {

OrtStatus* status_of(const OrtApi* api, const char* text) { return kCreateStatus(api, kOrtInvalidArgument, text); }

// Runs a piece of code that may throw, at a border where nothing may be thrown.
template <class Body>
OrtStatus* guarded(const OrtApi* api, const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return kCreateStatus(api, kOrtFail, "ai.sparsify: there is not enough memory for a work area.");
  } catch (const std::exception& error) {
    return status_of(api, (std::string("ai.sparsify: ") + error.what()).c_str());
  }
}

// One overload of an operator: the runtime hands the struct back to every callback below.
struct Operator : OrtCustomOp {
  int element = 0;
  bool bfloat16 = false;  // asked for as arithmetic
  const OrtApi* api = nullptr;
};

struct Kernel {
  Runtime ort;
  const Isa& isa;
  int element;
  Attributes attributes;
};

struct LoopContext {
  const Runtime* ort;
  const OrtKernelContext* context;
};

// As many batches as pieces: then whoever is free takes the next piece, instead of a fixed share of them.
void parallel(void* context, void (*body)(void*, size_t), size_t count, void* user) {
  const LoopContext& c = *static_cast<LoopContext*>(context);
  c.ort->call(kParallelFor, "run a parallel loop", c.context, body, count, count, user);
}

void output(const Runtime& ort, OrtKernelContext* context, std::initializer_list<int64_t> shape, void*& data) {
  OrtValue* value = nullptr;
  ort.call(kGetOutput, "make the output", context, size_t{0}, shape.begin(), shape.size(), &value);
  ort.call(kGetTensorMutableData, "give the output's data", value, &data);
}

void compute(const Kernel& kernel, OrtKernelContext* context) {
  LoopContext loop_context{&kernel.ort, context};
  const Loop loop{&loop_context, parallel};
  Problem p = read_problem(kernel.ort, context, kernel.attributes, kernel.element);
  if (!p.counts) p.attributes.q_block = kernel.isa.rows;  // with every block kept their size means nothing
  output(kernel.ort, context, {p.sizes.batch, p.sizes.q_heads, p.sizes.q_len, p.sizes.v_dim}, p.y);
  attend(p, kernel.isa, loop);
}

OrtStatus* ORT_CALL create_attention(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                                     void** kernel) {
  return guarded(api, [&] {
    const Runtime ort(api);
    const Operator& self = *static_cast<const Operator*>(op);
    *kernel = new Kernel{ort, chosen_isa(self.bfloat16), self.element, read_attributes(ort, info)};
  });
}

OrtStatus* ORT_CALL compute_attention(void* kernel, OrtKernelContext* context) {
  const Kernel& k = *static_cast<Kernel*>(kernel);
  return guarded(k.ort.api(), [&] { compute(k, context); });
}

void ORT_CALL destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// KernelInfo: tells which instruction set is in use, as ASCII. Its input is only there because an operator needs one.
OrtStatus* ORT_CALL create_info(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo*, void** kernel) {
  const bool bfloat16 = static_cast<const Operator*>(op)->bfloat16;
  return guarded(api, [&] { *kernel = new Kernel{Runtime(api), chosen_isa(bfloat16), kOrtUint8, {}}; });
}

OrtStatus* ORT_CALL compute_info(void* kernel, OrtKernelContext* context) {
  const Kernel& k = *static_cast<Kernel*>(kernel);
  return guarded(k.ort.api(), [&] {
    const size_t length = strlen(k.isa.name);
    void* data = nullptr;
    output(k.ort, context, {static_cast<int64_t>(length)}, data);
    memcpy(data, k.isa.name, length);
  });
}

int ORT_CALL input_type(const OrtCustomOp* op, size_t index) {
  switch (index) {
    case 3: case 4: return kOrtInt32;
    case 5: return kOrtBool;
    case 7: case 9: return kOrtInt64;
    default: return static_cast<const Operator*>(op)->element;
  }
}

Operator common() {
  Operator op{};
  op.version = kOrtVersion;
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetOutputType = [](const OrtCustomOp* self, size_t) { return static_cast<const Operator*>(self)->element; };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t index) -> int {
    return index < 3 ? kOrtRequired : kOrtOptional;
  };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) -> int { return kOrtRequired; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 2147483647; };
  op.KernelDestroy = destroy;
  return op;
}

OrtStatus* ORT_CALL infer_attention(const OrtCustomOp* self, OrtShapeInferContext* context) {
  const Operator& op = *static_cast<const Operator*>(self);
  return infer_shape(op.api, context);
}

// Before 1.24 the runtime itself crashed on a missing optional input while it prepared shape inference.
bool may_infer(const OrtApiBase* base) {
  int major = 0, minor = 0;
  return sscanf(base->GetVersionString(), "%d.%d", &major, &minor) == 2 && (major > 1 || minor >= 24);
}

Operator attention(const OrtApi* api, int element, bool infers) {
  Operator op = common();
  op.api = api;
  op.element = element;
  op.GetName = [](const OrtCustomOp*) { return "SparseAttention"; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{10}; };
  op.GetInputType = input_type;
  op.CreateKernelV2 = create_attention;
  op.KernelComputeV2 = compute_attention;
  if (infers) op.InferOutputShapeFn = infer_attention;
  return op;
}

Operator kernel_info() {
  Operator op = common();
  op.element = kOrtUint8;
  op.GetName = [](const OrtCustomOp*) { return "KernelInfo"; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetInputType = [](const OrtCustomOp*, size_t) -> int { return kOrtInt64; };
  op.CreateKernelV2 = create_info;
  op.KernelComputeV2 = compute_info;
  return op;
}

// Whether the session's options ask for bfloat16 arithmetic. They have to do so before the library is registered.
bool wants_bfloat16(const Runtime& ort, const OrtSessionOptions* options) {
  constexpr const char* kKey = "ai.sparsify.bfloat16";
  int given = 0;
  ort.call(kHasSessionConfigEntry, "look for a session option", options, kKey, &given);
  if (!given) return false;
  char value[2] = "";
  size_t size = 0;
  ort.call(kGetSessionConfigEntry, "tell a session option's length", options, kKey, nullptr, &size);
  if (size == sizeof value) ort.call(kGetSessionConfigEntry, "tell a session option", options, kKey, value, &size);
  if (value[0] != '0' && value[0] != '1') throw Failure(std::string("session option ") + kKey + " must be 0 or 1.");
  return value[0] == '1';
}

// The operators and their domains live as long as the library; every session gets one of the two domains.
struct Domain {
  Domain(const OrtApi* api, const OrtApiBase* base, bool bfloat16)
      : all{attention(api, kOrtFloat, may_infer(base)), attention(api, kOrtHalf, may_infer(base)),
            attention(api, kOrtBfloat16, may_infer(base)), kernel_info()} {
    const Runtime ort(api);
    ort.call(kCreateCustomOpDomain, "make an operator domain", "ai.sparsify", &made);
    for (Operator& op : all) {
      op.bfloat16 = bfloat16;
      ort.call(kCustomOpDomainAdd, "add an operator", made, &op);
    }
  }
  Operator all[4];
  OrtCustomOpDomain* made = nullptr;
};

void add_operators(const OrtApi* api, const OrtApiBase* base, OrtSessionOptions* options) {
  static Domain plain(api, base, false), bfloat16(api, base, true);
  const Runtime ort(api);
  const Domain& domain = wants_bfloat16(ort, options) ? bfloat16 : plain;
  ort.call(kAddCustomOpDomain, "take our operator domain", options, domain.made);
}

}  // namespace

}  // namespace sparsify

#ifdef _WIN32
#define SPARSIFY_EXPORT extern "C" __declspec(dllexport)
#else
#define SPARSIFY_EXPORT extern "C" __attribute__((visibility("default")))
#endif

SPARSIFY_EXPORT OrtStatus* ORT_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(kOrtVersion);
  if (!api) {
    const char* text = "ai.sparsify: the kernels need ONNX Runtime 1.17 or newer; upgrade onnxruntime.";
    return sparsify::kCreateStatus(base->GetApi(1), kOrtFail, text);
  }
  return sparsify::guarded(api, [&] { sparsify::add_operators(api, base, options); });
}
