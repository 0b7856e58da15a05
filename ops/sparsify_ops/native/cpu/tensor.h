// What ONNX Runtime hands over: its C API with statuses turned into Failure, and tensors as pointers and shapes.
#pragma once
#include <stdint.h>

#include <string>

#include "ort_abi.h"
#include "problem.h"

namespace sparsify {

class Runtime {
 public:
  explicit Runtime(const OrtApi* api) : api_(api) {}
  template <class... Args, class... Given>
  void call(const OrtCall<Args...>& slot, const char* what, Given... given) const {
    if (OrtStatus* status = slot(api_, given...)) {
      kReleaseStatus(api_, status);
      throw Failure(std::string("ONNX Runtime could not ") + what + ".");
    }
  }
  template <class T>
  bool attribute(const OrtCall<const OrtKernelInfo*, const char*, T*>& slot, const OrtKernelInfo* info,
                 const char* name, T& value) const {
    OrtStatus* status = slot(api_, info, name, &value);
    if (status) kReleaseStatus(api_, status);
    return !status;
  }
  const OrtApi* api() const { return api_; }

 private:
  const OrtApi* api_;
};

struct Tensor {
  static constexpr size_t kMostDims = 8;
  void* data = nullptr;
  int64_t shape[kMostDims] = {};
  size_t rank = 0;
  bool present = false;
  int64_t size() const;
  explicit operator bool() const { return present; }
};

// Reads inputs one by one; those left out at the end need not be declared.
class Reader {
 public:
  // The first `required` of the `names` must be there.
  Reader(const Runtime&, const OrtKernelContext*, const char* const* names, size_t required);
  Tensor take(size_t index, int element) const;

 private:
  const Runtime& ort_;
  const OrtKernelContext* context_;
  const char* const* names_;
  size_t required_, given_ = 0;
};

std::string text(const int64_t* shape, size_t rank);
std::string text(const Tensor&);

// The rules that inputs of several operators obey; each throws Failure.
void expect(bool holds, const char* attribute, const char* rule);
void expect_rank(const Tensor&, size_t rank, const char* name);
void expect_one_or(int64_t n, int64_t wanted, const char* name, const char* dimension);
void expect_lengths(int64_t q_len, int64_t k_len);
void expect_heads(int64_t q_heads, int64_t kv_heads);

// Strides of a contiguous tensor broadcast to four dimensions; dimensions of length 1 get stride 0.
void broadcast(const Tensor&, const int64_t (&to)[4], const char* name, int64_t (&stride)[4]);

// A vector with one entry, or one for each of `n`.
template <class T>
void read_vector(const Tensor& t, int64_t n, const char* name, const char* dimension, View<T>& view) {
  if (!t) return;
  expect_rank(t, 1, name);
  expect_one_or(t.shape[0], n, name, dimension);
  view.data = static_cast<const T*>(t.data);
  view.stride[0] = t.shape[0] == 1 ? 0 : 1;
}

Element element_of(int type);

}  // namespace sparsify
