// Shape inference: the output is [B, Hq, Sq] of the queries and the last dimension of the values.
#include "shape.h"

#include <vector>

namespace sparsify {

namespace {

struct Shape {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // belongs to the context
  std::vector<int64_t> dims;
  std::vector<const char*> names;
  bool known() const {
    if (dims.size() != 4) return false;
    for (size_t i = 0; i < 4; ++i) {
      if (dims[i] < 0 && !(names[i] && *names[i])) return false;
    }
    return true;
  }
};

OrtStatus* read(const OrtApi* api, const OrtShapeInferContext* context, size_t index, Shape& out) {
  size_t rank = 0;
  OrtStatus* status = kInferGetInput(api, context, index, &out.info);
  if (!status) status = kGetDimensionsCount(api, out.info, &rank);
  out.dims.resize(status ? 0 : rank);
  out.names.resize(out.dims.size());
  if (!status) status = kGetDimensions(api, out.info, out.dims.data(), rank);
  if (!status) status = kGetSymbolicDimensions(api, out.info, out.names.data(), rank);
  return status;
}

OrtStatus* write(const OrtApi* api, OrtShapeInferContext* context, Shape& shape, int element) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  OrtStatus* status = kCreateShapeInfo(api, &info);
  if (status) return status;
  status = kSetElementType(api, info, element);
  if (!status) status = kSetDimensions(api, info, shape.dims.data(), shape.dims.size());
  if (!status) status = kSetSymbolicDimensions(api, info, shape.names.data(), shape.names.size());
  if (!status) status = kInferSetOutput(api, context, 0, info);
  kReleaseShapeInfo(api, info);
  return status;
}

}  // namespace

OrtStatus* infer_shape(const OrtApi* api, OrtShapeInferContext* context) {
  Shape q, v;
  OrtStatus* status = read(api, context, 0, q);
  if (!status) status = read(api, context, 2, v);
  if (status || !q.known() || !v.known()) return status;  // an unnamed unknown dimension can not be passed on
  int element = 0;  // the runtime calls one overload's function for all of them, so the type comes from the input
  status = kGetElementType(api, q.info, &element);
  if (status) return status;
  q.dims[3] = v.dims[3];
  q.names[3] = v.names[3];
  return write(api, context, q, element);
}

}  // namespace sparsify
