// The operators that select blocks, as ONNX Runtime sees them: two that predict mass, two that choose by it.
#include <algorithm>
#include <atomic>
#include <vector>

#include "choose.h"
#include "custom_op.h"
#include "dispatch.h"
#include "selector_inputs.h"

namespace sparsify {

namespace {

constexpr const char *kMeanKeyMass = "MeanKeyMass", *kQuantizedMass = "QuantizedMass", *kTopK = "TopKBlocks",
                     *kTopP = "TopPBlocks";

// Predicting ---------------------------------------------------------------------------------------------------------

struct MassKernel {
  Runtime ort;
  const Isa& isa;
  int element;
  MassAttributes attributes;
};

const char* name_of(bool rounds) { return rounds ? kQuantizedMass : kMeanKeyMass; }

template <bool rounds>
OrtStatus* ORT_CALL create_mass(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  return guarded(api, name_of(rounds), [&] {
    const Runtime ort(api);
    const int element = static_cast<const Operator*>(op)->element;
    *kernel = new MassKernel{ort, chosen_isa(false), element, read_mass_attributes(ort, info, rounds)};
  });
}

template <bool rounds>
OrtStatus* ORT_CALL compute_mass(void* kernel, OrtKernelContext* context) {
  const MassKernel& k = *static_cast<MassKernel*>(kernel);
  return guarded(k.ort.api(), name_of(rounds), [&] {
    Pool pool{k.ort, context};
    MassProblem p = read_mass_problem(k.ort, context, k.attributes, k.element);
    const auto result = [&](size_t index) {
      return static_cast<float*>(
          output(k.ort, context, index, {p.sizes.batch, p.sizes.q_heads, p.q_blocks(), p.k_blocks()}));
    };
    p.mass = result(0);
    if (rounds) p.spread = result(1);
    predict_mass(p, k.isa, pool.loop());
  });
}

template <bool rounds>
Operator mass_operator(const OrtApi* api, int element) {
  Operator op = common(api, element);
  op.GetName = [](const OrtCustomOp*) { return name_of(rounds); };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{3}; };
  op.GetInputType = [](const OrtCustomOp* self, size_t index) -> int {
    return index == 2 ? kOrtInt64 : static_cast<const Operator*>(self)->element;
  };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t index) -> int {
    return index < 2 ? kOrtRequired : kOrtOptional;
  };
  op.GetOutputTypeCount = [](const OrtCustomOp*) { return size_t{rounds ? 2 : 1}; };
  op.GetOutputType = [](const OrtCustomOp*, size_t) -> int { return kOrtFloat; };
  op.CreateKernelV2 = create_mass<rounds>;
  op.KernelComputeV2 = compute_mass<rounds>;
  op.KernelDestroy = [](void* kernel) { delete static_cast<MassKernel*>(kernel); };
  return op;
}

// Choosing -----------------------------------------------------------------------------------------------------------

struct ChoiceKernel {
  Runtime ort;
  float tau;
};

const char* choice_of(bool counted) { return counted ? kTopK : kTopP; }

template <bool counted>
OrtStatus* ORT_CALL create_choice(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  return guarded(api, choice_of(counted), [&] {
    const Runtime ort(api);
    *kernel = new ChoiceKernel{ort, counted ? 0.0f : read_tau(ort, info)};
  });
}

struct ChoiceCall {
  const Rows& rows;
  float tau;
  int64_t capacity, per_chunk;
  int32_t *ids, *counts;
  std::atomic<bool> failed{false};
};

void choose_rows(void* user, size_t index) {
  static thread_local std::vector<uint64_t> order;
  ChoiceCall& call = *static_cast<ChoiceCall*>(user);
  const Rows& rows = call.rows;
  const int64_t first = static_cast<int64_t>(index) * call.per_chunk, n = rows.k_blocks;
  try {
    for (int64_t row = first; row < std::min(rows.size(), first + call.per_chunk); ++row) {
      const float* scores = rows.scores + row * n;
      int32_t* ids = call.ids + row * call.capacity;
      const int64_t count = rows.counts ? top_k(scores, n, rows.count(row), call.capacity, order, ids)
                                        : top_p(scores, n, call.tau, call.capacity, order, ids);
      call.counts[row] = static_cast<int32_t>(count);
    }
  } catch (const std::exception&) {  // nothing may be thrown through the runtime's thread pool
    call.failed.store(true);
  }
}

// C of block_indices: what the row that keeps most needs, or every block where that is not known before.
int64_t capacity_of(const Rows& rows) {
  if (!rows.counts) return rows.k_blocks;
  int64_t most = 1;
  for (int64_t row = 0; row < rows.size(); ++row) most = std::max(most, rows.count(row));
  return most;
}

template <bool counted>
OrtStatus* ORT_CALL compute_choice(void* kernel, OrtKernelContext* context) {
  constexpr int64_t kEnough = 1 << 13;  // scores of a piece
  const ChoiceKernel& k = *static_cast<ChoiceKernel*>(kernel);
  return guarded(k.ort.api(), choice_of(counted), [&] {
    const Rows rows = read_rows(k.ort, context, counted);
    ChoiceCall call{rows, k.tau, capacity_of(rows), std::max<int64_t>(1, kEnough / rows.k_blocks), nullptr, nullptr};
    call.ids = static_cast<int32_t*>(
        output(k.ort, context, 0, {rows.batch, rows.heads, rows.q_blocks, call.capacity}));
    call.counts = static_cast<int32_t*>(output(k.ort, context, 1, {rows.batch, rows.heads, rows.q_blocks}));
    if (rows.size() == 0) return;
    Pool pool{k.ort, context};
    const Loop loop = pool.loop();
    const int64_t chunks = (rows.size() + call.per_chunk - 1) / call.per_chunk;
    loop.run(loop.context, choose_rows, static_cast<size_t>(chunks), &call);
    if (call.failed.load()) throw std::bad_alloc();
  });
}

template <bool counted>
Operator choice_operator(const OrtApi* api) {
  Operator op = common(api, kOrtFloat);
  op.GetName = [](const OrtCustomOp*) { return choice_of(counted); };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{counted ? 2 : 1}; };
  op.GetInputType = [](const OrtCustomOp*, size_t index) -> int { return index ? kOrtInt64 : kOrtFloat; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) { return size_t{2}; };
  op.GetOutputType = [](const OrtCustomOp*, size_t) -> int { return kOrtInt32; };
  op.CreateKernelV2 = create_choice<counted>;
  op.KernelComputeV2 = compute_choice<counted>;
  op.KernelDestroy = [](void* kernel) { delete static_cast<ChoiceKernel*>(kernel); };
  return op;
}

}  // namespace

Operator mean_key_mass_operator(const OrtApi* api, int element) { return mass_operator<false>(api, element); }
Operator quantized_mass_operator(const OrtApi* api, int element) { return mass_operator<true>(api, element); }
Operator top_k_operator(const OrtApi* api) { return choice_operator<true>(api); }
Operator top_p_operator(const OrtApi* api) { return choice_operator<false>(api); }

}  // namespace sparsify
