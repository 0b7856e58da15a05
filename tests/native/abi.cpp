// Calls the operators as ONNX Runtime does, through the library's C ABI, with arbitrary attributes and inputs: bytes
// become a call of one operator, mostly a sensible one. It is computed twice, into memory full of different things and
// with loops run in either direction, and both results must be the same bits. Whatever is refused, is so in a sentence.
// A libFuzzer target; linked with replay.cpp, a program that runs a number of inputs from fixed seeds.
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "drafts.h"
#include "fake_ort.h"
#include "tensor.h"

extern "C" OrtStatus* ORT_CALL RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*);

namespace {

void require(bool holds) {
  if (!holds) abort();
}

// Whether all went well; otherwise the status must say something to a user.
bool fine(OrtStatus* status) {
  if (!status) return true;
  require(status->text.size() >= 20 && status->text.back() == '.');
  fake::release_status(status);
  return false;
}

// Values -------------------------------------------------------------------------------------------------------------

void* integers(Bytes& in, Arrays& arrays, const Input& input, int64_t count, bool narrow) {
  std::minstd_rand random = in.random();
  const bool wild = in.once_in(24);
  const uint64_t span = static_cast<uint64_t>(input.high) - static_cast<uint64_t>(input.low) + 1;
  int64_t* values = arrays.make<int64_t>(count);
  int32_t* narrowed = arrays.make<int32_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = input.low + static_cast<int64_t>(random() % span);
    if (wild && random() % 2) values[i] = kWild[random() % 8];
    narrowed[i] = static_cast<int32_t>(values[i]);
  }
  return narrow ? static_cast<void*>(narrowed) : values;
}

// Every row of the last dimension ascends and ends in padding.
void* ids(Bytes& in, Arrays& arrays, const Input& input, int64_t count) {
  std::minstd_rand random = in.random();
  const bool wild = in.once_in(24);
  const int64_t row = input.dims.empty() ? 1 : input.dims.back();
  int32_t* values = arrays.make<int32_t>(count);
  int64_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i % row == 0) next = 0;
    const int64_t id = next + static_cast<int64_t>(random() % 3);
    next = id + 1;
    values[i] = static_cast<int32_t>(wild && random() % 4 == 0 ? kWild[random() % 8] : id < input.high ? id : -1);
  }
  return values;
}

void* flags(Bytes& in, Arrays& arrays, int64_t count) {
  std::minstd_rand random = in.random();
  uint8_t* values = arrays.make<uint8_t>(count);
  for (int64_t i = 0; i < count; ++i) values[i] = random() % 5 != 0;
  return values;
}

void* values(Bytes& in, Arrays& arrays, const Input& input, int element, int64_t count) {
  if (input.foreign) return memset(arrays.make<uint8_t>(count), 1, static_cast<size_t>(count));
  switch (input.fill) {
    case Fill::flags: return flags(in, arrays, count);
    case Fill::ids: return ids(in, arrays, input, count);
    case Fill::integers: return integers(in, arrays, input, count, element == kOrtInt32);
    default: return floats(in, arrays, sparsify::element_of(element), count, in.once_in(4));
  }
}

// Calls --------------------------------------------------------------------------------------------------------------

// Makes one input something that the operator does not expect.
void spoil(Bytes& in, std::vector<Input>& inputs) {
  const auto index = static_cast<size_t>(in.below(static_cast<int64_t>(inputs.size())));
  Input& input = inputs[index];
  std::vector<int64_t>& dims = input.dims;
  switch (in.below(6)) {
    case 0: input.given = false; break;
    case 1: inputs.resize(index); break;
    case 2: input.foreign = true; break;
    case 3: dims.resize(static_cast<size_t>(in.below(11)), 1); break;
    case 4: dims.insert(dims.begin(), static_cast<size_t>(in.below(3)), 1 + in.below(2)); break;
    default:
      if (dims.empty()) break;
      dims[static_cast<size_t>(in.below(4)) % dims.size()] = in.coin() ? in.below(4) : kAbsurd[in.below(4)];
  }
}

// What can not exist becomes smaller; empty tensors may have any other dimensions.
void make_possible(std::vector<int64_t>& dims) {
  while (!fake::count_of(dims)) *std::max_element(dims.begin(), dims.end()) = 1;
}

std::vector<std::optional<OrtValue>> make_inputs(Bytes& in, Arrays& arrays, const OrtCustomOp* op, Draft& draft) {
  require(draft.inputs.size() == op->GetInputTypeCount(op));
  for (size_t i = 0; i < draft.inputs.size(); ++i) {
    if (op->GetInputCharacteristic(op, i) == kOrtOptional) draft.inputs[i].given = in.coin();
  }
  if (in.once_in(5)) spoil(in, draft.inputs);
  std::vector<std::optional<OrtValue>> made;
  for (size_t i = 0; i < draft.inputs.size(); ++i) {
    Input& input = draft.inputs[i];
    make_possible(input.dims);
    const int element = op->GetInputType(op, i), shown = input.foreign ? kOrtUint8 : element;
    const int64_t count = *fake::count_of(input.dims);
    made.emplace_back();
    if (input.given) made.back() = OrtValue{shown, input.dims, values(in, arrays, input, element, count)};
  }
  return made;
}

struct Output {
  std::vector<int64_t> dims;
  std::string bytes;
  bool operator==(const Output& other) const { return dims == other.dims && bytes == other.bytes; }
};
using Outputs = std::vector<Output>;

// All outputs, or none where the call is refused.
Outputs compute(const OrtCustomOp* op, void* kernel, OrtKernelContext context) {
  Arrays arrays;
  context.arrays = &arrays;
  for (size_t i = 0; i < op->GetOutputTypeCount(op); ++i) context.output_elements.push_back(op->GetOutputType(op, i));
  context.outputs.resize(context.output_elements.size());
  Outputs out;
  if (!fine(op->KernelComputeV2(kernel, &context))) return out;
  for (const std::optional<OrtValue>& value : context.outputs) {
    require(value.has_value());
    const int64_t bytes = *fake::count_of(value->dims) * fake::bytes_of(value->element);
    out.push_back({value->dims, {static_cast<const char*>(value->data), static_cast<size_t>(bytes)}});
  }
  return out;
}

Outputs compute_twice(const OrtCustomOp* op, void* kernel, OrtKernelContext& context) {
  Outputs out = compute(op, kernel, context);
  context.fill = 0xa5, context.backwards = true;
  require(compute(op, kernel, context) == out);
  return out;
}

using Shape = std::optional<OrtTensorTypeAndShapeInfo>;

// Asks for the output's shape before anything runs, when some dimensions only have names and some are not known.
Shape infer(Bytes& in, const OrtCustomOp* op, const OrtKernelContext& context) {
  OrtShapeInferContext shapes;
  for (const std::optional<OrtValue>& value : context.inputs) {
    OrtTensorTypeAndShapeInfo info;
    if (value) info.element = value->element, info.dims = value->dims;
    for (int64_t& n : info.dims) {
      const bool known = !in.once_in(4);
      info.names.push_back(known || in.coin() ? "" : "n");
      if (!known) n = -1;
    }
    shapes.inputs.push_back(info);
  }
  if (op->InferOutputShapeFn && fine(op->InferOutputShapeFn(op, &shapes))) return shapes.output;
  return std::nullopt;
}

bool agrees(const OrtTensorTypeAndShapeInfo& inferred, const std::vector<int64_t>& dims) {
  const auto fits = [](int64_t n, int64_t found) { return n < 0 || n == found; };
  return std::equal(inferred.dims.begin(), inferred.dims.end(), dims.begin(), dims.end(), fits);
}

void call(Bytes& in, const OrtCustomOp* op) {
  Arrays arrays;
  Draft draft(in);
  draw(op->GetName(op), draft);
  OrtKernelContext context;
  context.inputs = make_inputs(in, arrays, op, draft);
  const Shape inferred = infer(in, op, context);
  void* kernel = nullptr;
  if (!fine(op->CreateKernelV2(op, fake::api(kOrtVersion), &draft.attributes, &kernel))) return;
  if (in.once_in(10)) {
    fake::calls_until_failure = in.below(60);
    compute(op, kernel, context);
    fake::calls_until_failure = -1;
  }
  const Outputs out = compute_twice(op, kernel, context);
  if (inferred && !out.empty()) require(agrees(*inferred, out[0].dims));
  op->KernelDestroy(kernel);
  accepted += !out.empty();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kBfloat16[] = {"0", "1", "", "2", "10"};
  Bytes in(data, size);
  OrtSessionOptions options;
  if (in.coin()) options.entry = kBfloat16[in.once_in(20) ? in.below(5) : in.below(2)];
  if (fine(RegisterCustomOps(&options, in.once_in(100) ? &fake::kOldBase : &fake::kBase))) {
    const auto& all = options.domain->operators;
    call(in, all[static_cast<size_t>(in.below(static_cast<int64_t>(all.size())))]);
  }
  require(fake::alive == 0);
  return 0;
}
