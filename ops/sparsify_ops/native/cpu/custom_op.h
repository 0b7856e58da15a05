// What the declarations of all our operators to ONNX Runtime have in common.
#pragma once
#include <exception>
#include <initializer_list>
#include <new>
#include <string>

#include "attention.h"
#include "ort_abi.h"
#include "tensor.h"

namespace sparsify {

// One overload of an operator: the runtime hands the struct back to every callback.
struct Operator : OrtCustomOp {
  int element = 0;
  bool bfloat16 = false;  // asked for as arithmetic
  const OrtApi* api = nullptr;
};

// An operator of which all but names, types and the two halves of a kernel is filled in.
Operator common(const OrtApi*, int element);

// `infers`: whether the runtime can be given shapes before it runs.
Operator attention_operator(const OrtApi*, int element, bool infers);
Operator mean_key_mass_operator(const OrtApi*, int element);
Operator quantized_mass_operator(const OrtApi*, int element);
Operator top_k_operator(const OrtApi*);
Operator top_p_operator(const OrtApi*);
Operator info_operator(const OrtApi*);

// Runs a piece of code that may throw, at a border where nothing may be thrown.
template <class Body>
OrtStatus* guarded(const OrtApi* api, const char* name, const Body& body) {
  const auto status = [&](OrtErrorCode code, const char* what) {
    return kCreateStatus(api, code, ("ai.sparsify: " + (*name ? name + std::string(": ") : "") + what).c_str());
  };
  try {
    body();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return status(kOrtFail, "there is not enough memory for a work area.");
  } catch (const std::exception& error) {
    return status(kOrtInvalidArgument, error.what());
  }
}

void* output(const Runtime&, OrtKernelContext*, size_t index, std::initializer_list<int64_t> shape);

// Runs loops in the runtime's own threads.
struct Pool {
  const Runtime& ort;
  const OrtKernelContext* context;
  Loop loop();
};

}  // namespace sparsify
