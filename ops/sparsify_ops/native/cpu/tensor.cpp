// Reads tensors from ONNX Runtime, and the rules that inputs of several operators obey.
#include "tensor.h"

#include <limits>

namespace sparsify {

std::string text(const int64_t* shape, size_t rank) {
  std::string out;
  for (size_t i = 0; i < rank; ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return "[" + out + "]";
}
std::string text(const Tensor& t) { return text(t.shape, t.rank); }

void expect(bool holds, const char* attribute, const char* rule) {
  if (!holds) throw Failure(std::string("attribute ") + attribute + " must be " + rule + ".");
}

void expect_rank(const Tensor& t, size_t rank, const char* name) {
  if (t.rank == rank) return;
  throw Failure(std::string("input ") + name + " must have " + std::to_string(rank) +
                " dimensions, but its shape is " + text(t) + ".");
}

void expect_one_or(int64_t n, int64_t wanted, const char* name, const char* dimension) {
  if (n == wanted || n == 1) return;
  throw Failure(std::string("input ") + name + ": its " + dimension + " dimension must be 1" +
                (wanted == 1 ? "" : " or " + std::to_string(wanted)) + ", not " + std::to_string(n) + ".");
}

void expect_lengths(int64_t q_len, int64_t k_len) {
  const int64_t most = std::numeric_limits<int32_t>::max();
  if (q_len >= most || k_len >= most) throw Failure("sequences must be shorter than 2^31.");
}

void expect_heads(int64_t q_heads, int64_t kv_heads) {
  if (q_heads == 0 || (kv_heads != 0 && q_heads % kv_heads == 0)) return;
  throw Failure("the " + std::to_string(q_heads) + " heads of Q are no multiple of the " + std::to_string(kv_heads) +
                " heads of K.");
}

void broadcast(const Tensor& t, const int64_t (&to)[4], const char* name, int64_t (&stride)[4]) {
  if (t.rank < 1 || t.rank > 4) throw Failure(std::string("input ") + name + " must have 1 to 4 dimensions.");
  int64_t step = 1;
  for (size_t i = 0; i < 4; ++i) {
    const int64_t n = i < t.rank ? t.shape[t.rank - 1 - i] : 1;
    if (n != 1 && n != to[3 - i]) {
      throw Failure(std::string("input ") + name + " of shape " + text(t) + " does not broadcast to " + text(to, 4) +
                    ".");
    }
    stride[3 - i] = n == 1 ? 0 : step;
    step = product(step, n);
  }
}

int64_t Tensor::size() const {
  int64_t n = 1;
  for (size_t i = 0; i < rank; ++i) n = product(n, shape[i]);
  return n;
}

namespace {

Tensor read_tensor(const Runtime& ort, const OrtValue* value, const char* name, int element) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ort.call(kGetTensorTypeAndShape, "describe an input", value, &info);
  struct Release {
    const OrtApi* api;
    OrtTensorTypeAndShapeInfo* info;
    ~Release() { kReleaseShapeInfo(api, info); }
  } release{ort.api(), info};
  int found = 0;
  ort.call(kGetElementType, "tell an input's type", info, &found);
  if (found != element) throw Failure(std::string("input ") + name + " has the wrong element type.");
  Tensor t;
  t.present = true;
  ort.call(kGetDimensionsCount, "tell an input's rank", info, &t.rank);
  if (t.rank > Tensor::kMostDims) throw Failure(std::string("input ") + name + " has more than 8 dimensions.");
  ort.call(kGetDimensions, "tell an input's shape", info, t.shape, t.rank);
  ort.call(kGetTensorMutableData, "give an input's data", const_cast<OrtValue*>(value), &t.data);
  return t;
}

}  // namespace

Reader::Reader(const Runtime& ort, const OrtKernelContext* context, const char* const* names, size_t required)
    : ort_(ort), context_(context), names_(names), required_(required) {
  ort.call(kGetInputCount, "count the inputs", context, &given_);
}

Tensor Reader::take(size_t index, int element) const {
  const OrtValue* value = nullptr;
  if (index < given_) ort_.call(kGetInput, "hand over an input", context_, index, &value);
  if (value) return read_tensor(ort_, value, names_[index], element);
  if (index < required_) throw Failure(std::string("input ") + names_[index] + " is missing.");
  return {};
}

Element element_of(int type) {
  return type == kOrtFloat ? Element::f32 : type == kOrtHalf ? Element::f16 : Element::bf16;
}

}  // namespace sparsify
