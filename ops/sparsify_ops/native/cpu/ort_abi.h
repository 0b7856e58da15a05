// The few pieces of ONNX Runtime's C ABI that a custom operator needs, written down because no package ships headers.
//
// `OrtApi` is a struct of function pointers that only ever grows at its end, so a slot keeps its number for good. The
// numbers below are offsetof(OrtApi, member) / 8 from onnxruntime_c_api.h. Everything used exists since version 17, and
// 17 is what we ask for: a larger number would be refused by an older runtime for no gain.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#define ORT_CALL __stdcall
#else
#define ORT_CALL
#endif

struct OrtApi;
struct OrtStatus;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;

struct OrtApiBase {
  const OrtApi*(ORT_CALL* GetApi)(uint32_t version);
  const char*(ORT_CALL* GetVersionString)();
};

constexpr uint32_t kOrtVersion = 17;

enum OrtElement : int {
  kOrtFloat = 1, kOrtUint8 = 2, kOrtInt32 = 6, kOrtInt64 = 7, kOrtBool = 9, kOrtHalf = 10, kOrtBfloat16 = 16
};
enum OrtErrorCode : int { kOrtFail = 1, kOrtInvalidArgument = 2 };
enum OrtCharacteristic : int { kOrtRequired = 0, kOrtOptional = 1 };

// Field for field the struct of API 17; the runtime reads later fields only when `version` says they exist.
struct OrtCustomOp {
  uint32_t version;
  void*(ORT_CALL* CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char*(ORT_CALL* GetName)(const OrtCustomOp*);
  const char*(ORT_CALL* GetExecutionProviderType)(const OrtCustomOp*);
  int(ORT_CALL* GetInputType)(const OrtCustomOp*, size_t index);
  size_t(ORT_CALL* GetInputTypeCount)(const OrtCustomOp*);
  int(ORT_CALL* GetOutputType)(const OrtCustomOp*, size_t index);
  size_t(ORT_CALL* GetOutputTypeCount)(const OrtCustomOp*);
  void(ORT_CALL* KernelCompute)(void* kernel, OrtKernelContext*);
  void(ORT_CALL* KernelDestroy)(void* kernel);
  int(ORT_CALL* GetInputCharacteristic)(const OrtCustomOp*, size_t index);
  int(ORT_CALL* GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
  int(ORT_CALL* GetInputMemoryType)(const OrtCustomOp*, size_t index);
  int(ORT_CALL* GetVariadicInputMinArity)(const OrtCustomOp*);
  int(ORT_CALL* GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int(ORT_CALL* GetVariadicOutputMinArity)(const OrtCustomOp*);
  int(ORT_CALL* GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus*(ORT_CALL* CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
  OrtStatus*(ORT_CALL* KernelComputeV2)(void* kernel, OrtKernelContext*);
  OrtStatus*(ORT_CALL* InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int(ORT_CALL* GetStartVersion)(const OrtCustomOp*);
  int(ORT_CALL* GetEndVersion)(const OrtCustomOp*);
  size_t(ORT_CALL* GetMayInplace)(int** input_index, int** output_index);
  void(ORT_CALL* ReleaseMayInplace)(int* input_index, int* output_index);
  size_t(ORT_CALL* GetAliasMap)(int** input_index, int** output_index);
  void(ORT_CALL* ReleaseAliasMap)(int* input_index, int* output_index);
};
static_assert(sizeof(void*) != 8 || sizeof(OrtCustomOp) == 208, "OrtCustomOp must match the runtime's layout");

namespace sparsify {

template <class Result, class... Args>
struct OrtSlot {
  int index;
  Result operator()(const OrtApi* api, Args... args) const {
    using Function = Result(ORT_CALL*)(Args...);
    return reinterpret_cast<const Function*>(api)[index](args...);
  }
};
template <class... Args>
using OrtCall = OrtSlot<OrtStatus*, Args...>;

using OrtLoop = void (*)(void* user, size_t index);

constexpr OrtCall<int, const char*> kCreateStatus{0};
constexpr OrtCall<const char*, OrtCustomOpDomain**> kCreateCustomOpDomain{26};
constexpr OrtCall<OrtCustomOpDomain*, const OrtCustomOp*> kCustomOpDomainAdd{27};
constexpr OrtCall<OrtSessionOptions*, OrtCustomOpDomain*> kAddCustomOpDomain{28};
constexpr OrtCall<OrtValue*, void**> kGetTensorMutableData{51};
constexpr OrtCall<OrtTensorTypeAndShapeInfo**> kCreateShapeInfo{57};
constexpr OrtCall<OrtTensorTypeAndShapeInfo*, int> kSetElementType{58};
constexpr OrtCall<OrtTensorTypeAndShapeInfo*, const int64_t*, size_t> kSetDimensions{59};
constexpr OrtCall<const OrtTensorTypeAndShapeInfo*, int*> kGetElementType{60};
constexpr OrtCall<const OrtTensorTypeAndShapeInfo*, size_t*> kGetDimensionsCount{61};
constexpr OrtCall<const OrtTensorTypeAndShapeInfo*, int64_t*, size_t> kGetDimensions{62};
constexpr OrtCall<const OrtTensorTypeAndShapeInfo*, const char**, size_t> kGetSymbolicDimensions{63};
constexpr OrtCall<const OrtValue*, OrtTensorTypeAndShapeInfo**> kGetTensorTypeAndShape{65};
constexpr OrtCall<const OrtKernelInfo*, const char*, float*> kGetAttributeFloat{85};
constexpr OrtCall<const OrtKernelInfo*, const char*, int64_t*> kGetAttributeInt{86};
constexpr OrtCall<const OrtKernelContext*, size_t*> kGetInputCount{88};
constexpr OrtCall<const OrtKernelContext*, size_t, const OrtValue**> kGetInput{90};
constexpr OrtCall<OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**> kGetOutput{91};
constexpr OrtSlot<void, OrtStatus*> kReleaseStatus{93};
constexpr OrtSlot<void, OrtTensorTypeAndShapeInfo*> kReleaseShapeInfo{99};
constexpr OrtCall<const OrtSessionOptions*, const char*, int*> kHasSessionConfigEntry{237};
constexpr OrtCall<const OrtSessionOptions*, const char*, char*, size_t*> kGetSessionConfigEntry{238};
constexpr OrtCall<const OrtShapeInferContext*, size_t, OrtTensorTypeAndShapeInfo**> kInferGetInput{268};
constexpr OrtCall<const OrtShapeInferContext*, size_t, const OrtTensorTypeAndShapeInfo*> kInferSetOutput{270};
constexpr OrtCall<OrtTensorTypeAndShapeInfo*, const char**, size_t> kSetSymbolicDimensions{271};
constexpr OrtCall<const OrtKernelContext*, OrtLoop, size_t, size_t, void*> kParallelFor{274};

}  // namespace sparsify
