// A stand-in for ONNX Runtime behind its C ABI: what the library asks for is answered from plain structs, objects are
// counted, and any call can be told to fail. A function that the library is not known to need aborts.
#pragma once
#include <stdlib.h>
#include <string.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bytes.h"
#include "ort_abi.h"

struct OrtStatus {
  std::string text;
};
struct OrtTensorTypeAndShapeInfo {
  int element = 0;
  std::vector<int64_t> dims;
  std::vector<std::string> names;
  bool owned = false;  // by the library, which has to release it
};
struct OrtValue {
  int element = 0;
  std::vector<int64_t> dims;
  void* data = nullptr;
};
struct OrtKernelInfo {
  std::map<std::string, float> floats;
  std::map<std::string, int64_t> ints;
};
struct OrtKernelContext {
  std::vector<std::optional<OrtValue>> inputs, outputs;
  std::vector<int> output_elements;
  Arrays* arrays = nullptr;
  int fill = 0;            // what outputs are full of
  bool backwards = false;  // loops run from their end
};
struct OrtShapeInferContext {
  std::vector<OrtTensorTypeAndShapeInfo> inputs;
  std::optional<OrtTensorTypeAndShapeInfo> output;
};
struct OrtCustomOpDomain {
  std::vector<const OrtCustomOp*> operators;
};
struct OrtSessionOptions {
  std::optional<std::string> entry;
  OrtCustomOpDomain* domain = nullptr;
};
struct OrtApi {
  void (*slots[300])();
};

namespace fake {

inline int64_t alive = 0;  // statuses and shapes that somebody has to release
inline int64_t calls_until_failure = -1;  // never, if negative

inline OrtStatus* new_status(const char* text) {
  ++alive;
  return new OrtStatus{text};
}

// The product of a shape's dimensions, if a tensor of so many elements can exist.
inline std::optional<int64_t> count_of(const std::vector<int64_t>& dims) {
  constexpr int64_t kMost = 1 << 22;
  int64_t count = 1;
  for (int64_t n : dims) {
    if (n == 0) return 0;
    count = n > kMost / count ? kMost + 1 : count * n;
  }
  if (count > kMost) return std::nullopt;
  return count;
}

inline int64_t bytes_of(int element) {
  switch (element) {
    case kOrtInt64: return 8;
    case kOrtFloat: case kOrtInt32: return 4;
    case kOrtHalf: case kOrtBfloat16: return 2;
    default: return 1;
  }
}

// Each function below answers one call; the text is what went wrong.
using Answer = const char*;

inline Answer create_domain(const char* name, OrtCustomOpDomain** out) {
  if (std::string(name) != "ai.sparsify") abort();
  *out = new OrtCustomOpDomain;
  return nullptr;
}
inline Answer add_operator(OrtCustomOpDomain* domain, const OrtCustomOp* op) {
  domain->operators.push_back(op);
  return nullptr;
}
inline Answer add_domain(OrtSessionOptions* options, OrtCustomOpDomain* domain) {
  options->domain = domain;
  return nullptr;
}
inline Answer has_entry(const OrtSessionOptions* options, const char*, int* out) {
  *out = options->entry.has_value();
  return nullptr;
}
inline Answer get_entry(const OrtSessionOptions* options, const char*, char* out, size_t* size) {
  const size_t needed = options->entry->size() + 1;
  if (out && *size < needed) return "The room for the session option is too small.";
  if (out) memcpy(out, options->entry->c_str(), needed);
  *size = needed;
  return nullptr;
}

template <class T>
Answer get_attribute(const std::map<std::string, T>& all, const char* name, T* out) {
  const auto found = all.find(name);
  if (found == all.end()) return "There is no such attribute.";
  *out = found->second;
  return nullptr;
}
inline Answer get_float(const OrtKernelInfo* info, const char* name, float* out) {
  return get_attribute(info->floats, name, out);
}
inline Answer get_int(const OrtKernelInfo* info, const char* name, int64_t* out) {
  return get_attribute(info->ints, name, out);
}

inline Answer count_inputs(const OrtKernelContext* context, size_t* out) {
  *out = context->inputs.size();
  return nullptr;
}
inline Answer get_input(const OrtKernelContext* context, size_t index, const OrtValue** out) {
  if (index >= context->inputs.size()) return "There is no input of this index.";
  *out = context->inputs[index] ? &*context->inputs[index] : nullptr;
  return nullptr;
}
inline Answer get_output(OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank, OrtValue** out) {
  if (index >= context->outputs.size()) abort();
  OrtValue value{context->output_elements[index], {dims, dims + rank}, nullptr};
  const std::optional<int64_t> count = count_of(value.dims);
  if (!count) return "There is not enough memory for an output.";
  const int64_t bytes = *count * bytes_of(value.element);
  value.data = memset(context->arrays->make<char>(bytes), context->fill, static_cast<size_t>(bytes));
  context->outputs[index] = value;
  *out = &*context->outputs[index];
  return nullptr;
}
inline Answer get_data(OrtValue* value, void** out) {
  *out = value->data;
  return nullptr;
}
inline Answer run_loop(const OrtKernelContext* context, sparsify::OrtLoop body, size_t count, size_t, void* user) {
  for (size_t i = 0; i < count; ++i) body(user, context->backwards ? count - 1 - i : i);
  return nullptr;
}

inline Answer new_shape(OrtTensorTypeAndShapeInfo** out) {
  ++alive;
  *out = new OrtTensorTypeAndShapeInfo;
  (*out)->owned = true;
  return nullptr;
}
inline Answer describe(const OrtValue* value, OrtTensorTypeAndShapeInfo** out) {
  new_shape(out);
  (*out)->element = value->element, (*out)->dims = value->dims;
  return nullptr;
}
inline Answer set_element(OrtTensorTypeAndShapeInfo* info, int element) {
  info->element = element;
  return nullptr;
}
inline Answer get_element(const OrtTensorTypeAndShapeInfo* info, int* out) {
  *out = info->element;
  return nullptr;
}
inline Answer set_dims(OrtTensorTypeAndShapeInfo* info, const int64_t* dims, size_t rank) {
  info->dims.assign(dims, dims + rank);
  return nullptr;
}
inline Answer get_rank(const OrtTensorTypeAndShapeInfo* info, size_t* out) {
  *out = info->dims.size();
  return nullptr;
}
inline Answer get_dims(const OrtTensorTypeAndShapeInfo* info, int64_t* out, size_t rank) {
  for (size_t i = 0; i < rank && i < info->dims.size(); ++i) out[i] = info->dims[i];
  return nullptr;
}
inline Answer set_names(OrtTensorTypeAndShapeInfo* info, const char** names, size_t rank) {
  info->names.clear();
  for (size_t i = 0; i < rank; ++i) info->names.push_back(names[i] ? names[i] : "");
  return nullptr;
}
inline Answer get_names(const OrtTensorTypeAndShapeInfo* info, const char** out, size_t rank) {
  for (size_t i = 0; i < rank && i < info->names.size(); ++i) out[i] = info->names[i].c_str();
  return nullptr;
}

inline Answer infer_input(const OrtShapeInferContext* context, size_t index, OrtTensorTypeAndShapeInfo** out) {
  if (index >= context->inputs.size()) return "There is no input of this index.";
  *out = const_cast<OrtTensorTypeAndShapeInfo*>(&context->inputs[index]);
  return nullptr;
}
inline Answer infer_output(const OrtShapeInferContext* context, size_t index, const OrtTensorTypeAndShapeInfo* info) {
  if (index != 0) abort();
  const_cast<OrtShapeInferContext*>(context)->output = *info;
  return nullptr;
}

inline OrtStatus* ORT_CALL create_status(int, const char* text) { return new_status(text); }
inline void ORT_CALL release_status(OrtStatus* status) {
  --alive;
  delete status;
}
inline void ORT_CALL release_shape(OrtTensorTypeAndShapeInfo* info) {
  if (!info->owned) abort();
  --alive;
  delete info;
}

// `function` behind the runtime's manners: a status for what went wrong, and failure when it is time to.
template <auto function, class... Args>
OrtStatus* ORT_CALL guarded(Args... args) {
  const bool fails = calls_until_failure >= 0 && calls_until_failure-- == 0;
  const Answer wrong = fails ? "The runtime fails because it was told to." : function(args...);
  return wrong ? new_status(wrong) : nullptr;
}

template <class Result, class... Args>
void put(OrtApi& api, int index, Result(ORT_CALL* function)(Args...)) {
  api.slots[index] = reinterpret_cast<void (*)()>(function);
}
template <auto function, class... Args>
void put(OrtApi& api, const sparsify::OrtCall<Args...>& slot) {
  OrtStatus*(ORT_CALL * typed)(Args...) = guarded<function, Args...>;
  put(api, slot.index, typed);
}

inline void fill_in(OrtApi& api) {
  for (auto& slot : api.slots) slot = [] { abort(); };
  put(api, sparsify::kCreateStatus.index, create_status);
  put(api, sparsify::kReleaseStatus.index, release_status);
  put(api, sparsify::kReleaseShapeInfo.index, release_shape);
  put<create_domain>(api, sparsify::kCreateCustomOpDomain);
  put<add_operator>(api, sparsify::kCustomOpDomainAdd);
  put<add_domain>(api, sparsify::kAddCustomOpDomain);
  put<has_entry>(api, sparsify::kHasSessionConfigEntry);
  put<get_entry>(api, sparsify::kGetSessionConfigEntry);
  put<get_float>(api, sparsify::kGetAttributeFloat);
  put<get_int>(api, sparsify::kGetAttributeInt);
  put<count_inputs>(api, sparsify::kGetInputCount);
  put<get_input>(api, sparsify::kGetInput);
  put<get_output>(api, sparsify::kGetOutput);
  put<get_data>(api, sparsify::kGetTensorMutableData);
  put<run_loop>(api, sparsify::kParallelFor);
  put<new_shape>(api, sparsify::kCreateShapeInfo);
  put<describe>(api, sparsify::kGetTensorTypeAndShape);
  put<set_element>(api, sparsify::kSetElementType);
  put<get_element>(api, sparsify::kGetElementType);
  put<set_dims>(api, sparsify::kSetDimensions);
  put<get_rank>(api, sparsify::kGetDimensionsCount);
  put<get_dims>(api, sparsify::kGetDimensions);
  put<set_names>(api, sparsify::kSetSymbolicDimensions);
  put<get_names>(api, sparsify::kGetSymbolicDimensions);
  put<infer_input>(api, sparsify::kInferGetInput);
  put<infer_output>(api, sparsify::kInferSetOutput);
}

inline const OrtApi* ORT_CALL api(uint32_t) {
  static const OrtApi made = [] {
    OrtApi empty;
    fill_in(empty);
    return empty;
  }();
  return &made;
}

inline const char* ORT_CALL version() { return "1.24.0"; }
inline const OrtApiBase kBase{api, version};
// One too old for the library, which can only be told so.
inline const OrtApi* ORT_CALL old_api(uint32_t version) { return version < kOrtVersion ? api(version) : nullptr; }
inline const OrtApiBase kOldBase{old_api, version};

}  // namespace fake
