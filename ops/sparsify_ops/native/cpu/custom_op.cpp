#include "custom_op.h"

namespace sparsify {

namespace {

// As many batches as pieces: then whoever is free takes the next piece, instead of a fixed share of them.
void parallel(void* context, void (*body)(void*, size_t), size_t count, void* user) {
  const Pool& pool = *static_cast<Pool*>(context);
  pool.ort.call(kParallelFor, "run a parallel loop", pool.context, body, count, count, user);
}

}  // namespace

Loop Pool::loop() { return {this, parallel}; }

void* output(const Runtime& ort, OrtKernelContext* context, size_t index, std::initializer_list<int64_t> shape) {
  OrtValue* value = nullptr;
  void* data = nullptr;
  ort.call(kGetOutput, "make an output", context, index, shape.begin(), shape.size(), &value);
  ort.call(kGetTensorMutableData, "give an output's data", value, &data);
  return data;
}

Operator common(const OrtApi* api, int element) {
  Operator op{};
  op.api = api;
  op.element = element;
  op.version = kOrtVersion;
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) -> int { return kOrtRequired; };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) -> int { return kOrtRequired; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 2147483647; };
  return op;
}

}  // namespace sparsify
