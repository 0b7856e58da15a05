// The door to ONNX Runtime: gives a session our operators.
#include <stdio.h>

#include "custom_op.h"

namespace sparsify {

namespace {

// Before 1.24 the runtime itself crashed on a missing optional input while it prepared shape inference.
bool may_infer(const OrtApiBase* base) {
  int major = 0, minor = 0;
  return sscanf(base->GetVersionString(), "%d.%d", &major, &minor) == 2 && (major > 1 || minor >= 24);
}

// Whether the session's options ask for bfloat16 arithmetic. They have to do so before the library is registered.
bool wants_bfloat16(const Runtime& ort, const OrtSessionOptions* options) {
  constexpr const char* kKey = "ai.sparsify.bfloat16";
  int given = 0;
  ort.call(kHasSessionConfigEntry, "look for a session option", options, kKey, &given);
  if (!given) return false;
  char value[2] = "";
  size_t size = 0;
  ort.call(kGetSessionConfigEntry, "tell a session option's length", options, kKey, nullptr, &size);
  if (size == sizeof value) ort.call(kGetSessionConfigEntry, "tell a session option", options, kKey, value, &size);
  if (value[0] != '0' && value[0] != '1') throw Failure(std::string("session option ") + kKey + " must be 0 or 1.");
  return value[0] == '1';
}

// The operators and their domains live as long as the library; every session gets one of the two domains.
struct Domain {
  Domain(const OrtApi* api, bool infers, bool bfloat16)
      : all{attention_operator(api, kOrtFloat, infers), attention_operator(api, kOrtHalf, infers),
            attention_operator(api, kOrtBfloat16, infers),
            mean_key_mass_operator(api, kOrtFloat), mean_key_mass_operator(api, kOrtHalf),
            mean_key_mass_operator(api, kOrtBfloat16),
            quantized_mass_operator(api, kOrtFloat), quantized_mass_operator(api, kOrtHalf),
            quantized_mass_operator(api, kOrtBfloat16),
            top_k_operator(api), top_p_operator(api), info_operator(api)} {
    const Runtime ort(api);
    ort.call(kCreateCustomOpDomain, "make an operator domain", "ai.sparsify", &made);
    for (Operator& op : all) {
      op.bfloat16 = bfloat16;
      ort.call(kCustomOpDomainAdd, "add an operator", made, &op);
    }
  }
  Operator all[12];
  OrtCustomOpDomain* made = nullptr;
};

void add_operators(const OrtApi* api, const OrtApiBase* base, OrtSessionOptions* options) {
  static Domain plain(api, may_infer(base), false), bfloat16(api, may_infer(base), true);
  const Runtime ort(api);
  const Domain& domain = wants_bfloat16(ort, options) ? bfloat16 : plain;
  ort.call(kAddCustomOpDomain, "take our operator domain", options, domain.made);
}

}  // namespace

}  // namespace sparsify

#ifdef _WIN32
#define SPARSIFY_EXPORT extern "C" __declspec(dllexport)
#else
#define SPARSIFY_EXPORT extern "C" __attribute__((visibility("default")))
#endif

SPARSIFY_EXPORT OrtStatus* ORT_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(kOrtVersion);
  if (!api) {
    const char* text = "ai.sparsify: the kernels need ONNX Runtime 1.17 or newer; upgrade onnxruntime.";
    return sparsify::kCreateStatus(base->GetApi(1), kOrtFail, text);
  }
  return sparsify::guarded(api, "", [&] { sparsify::add_operators(api, base, options); });
}
