// Converts whole tensors between float and the half-precision types, in pieces that threads can share.
#include <algorithm>

#include "inputs.h"

namespace sparsify {

namespace {

struct Conversion {
  void (*piece)(const void* from, void* to, int64_t begin, int64_t count, const Isa&, int element);
  const Isa* isa;
  const void* from;
  void* to;
  int64_t count;
  int element;
};
constexpr int64_t kPiece = 1 << 16;

void convert_piece(void* user, size_t index) {
  const Conversion& c = *static_cast<Conversion*>(user);
  const int64_t begin = static_cast<int64_t>(index) * kPiece;
  c.piece(c.from, c.to, begin, std::min(kPiece, c.count - begin), *c.isa, c.element);
}

void convert(Conversion& c, const Loop& loop) {
  const auto pieces = static_cast<size_t>((c.count + kPiece - 1) / kPiece);
  if (pieces == 1) return convert_piece(&c, 0);
  if (pieces > 1) loop.run(loop.context, convert_piece, pieces, &c);
}

void widen(const void* from, void* to, int64_t begin, int64_t count, const Isa& isa, int element) {
  const auto convert = element == kOrtHalf ? isa.half_to_float : isa.bfloat_to_float;
  convert(static_cast<const uint16_t*>(from) + begin, static_cast<float*>(to) + begin, count);
}

void narrow(const void* from, void* to, int64_t begin, int64_t count, const Isa& isa, int element) {
  const auto convert = element == kOrtHalf ? isa.float_to_half : isa.float_to_bfloat;
  convert(static_cast<const float*>(from) + begin, static_cast<uint16_t*>(to) + begin, count);
}

}  // namespace

void to_float(const Isa& isa, const Loop& loop, int element, const void* from, float* to, int64_t count) {
  Conversion c{widen, &isa, from, to, count, element};
  convert(c, loop);
}

void from_float(const Isa& isa, const Loop& loop, int element, const float* from, void* to, int64_t count) {
  Conversion c{narrow, &isa, from, to, count, element};
  convert(c, loop);
}

}  // namespace sparsify
