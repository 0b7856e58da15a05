// Reads attributes and inputs from ONNX Runtime and checks all of them before anything is computed.
#pragma once
#include <stdint.h>

#include <memory>
#include <vector>

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
  void* data = nullptr;
  std::vector<int64_t> shape;
  int64_t size() const;
  explicit operator bool() const { return present; }
  bool present = false;
};

Tensor read_tensor(const Runtime&, const OrtValue*, const char* name, int element);

Attributes read_attributes(const Runtime&, const OrtKernelInfo*);

// One call's inputs, with the half-precision ones converted to buffers of their own.
class Inputs {
 public:
  Inputs(const Runtime&, const OrtKernelContext*, const Attributes&, int element, const Isa&, const Loop&);
  Problem problem;

 private:
  Tensor take(const Runtime&, const OrtKernelContext*, size_t index, int element) const;
  const float* floats(const Tensor&, int element, const Isa&, const Loop&);
  void read_sizes(const Tensor& q, const Tensor& k, const Tensor& v);
  void read_selection(const Tensor& indices, const Tensor& counts);
  void read_vectors(const Tensor& lengths, const Tensor& offsets, const Tensor& sinks, const float* sink_values);
  size_t given_ = 0;
  std::vector<std::unique_ptr<float[]>> converted_;
};

// Converts count elements between float and half or bfloat16, in parallel.
void to_float(const Isa&, const Loop&, int element, const void* from, float* to, int64_t count);
void from_float(const Isa&, const Loop&, int element, const float* from, void* to, int64_t count);

}  // namespace sparsify
