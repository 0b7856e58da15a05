// Reads attributes and inputs from ONNX Runtime and checks all of them before anything is computed.
#pragma once
#include <stdint.h>

#include "attention.h"
#include "ort_abi.h"
#include "problem.h"

namespace sparsify {

// The C API with statuses turned into Failure.
class Runtime {
 public:
  explicit Runtime(const OrtApi* api) : api_(api) {}
  template <class... Args, class... Given>
  void call(const OrtCall<Args...>& slot, const char* what, Given... given) const {
    if (OrtStatus* status = slot(api_, given...)) {
      kReleaseStatus(api_, status);
      throw Failure(std::string("SparseAttention: ONNX Runtime could not ") + what + ".");
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

Tensor read_tensor(const Runtime&, const OrtValue*, const char* name, int element);

Attributes read_attributes(const Runtime&, const OrtKernelInfo*);

// One call's inputs, checked.
Problem read_problem(const Runtime&, const OrtKernelContext*, const Attributes&, int element);

}  // namespace sparsify
