// Light ops of ONNX that FusedNodes runs beside the library's own, so that they do not stand between these. onnxruntime has
// kernels of its own for them, so they are not registered.
//
//   Add, Mul (A float, B float) -> C                              of shapes that broadcast, as numpy's do
//   SimplifiedLayerNormalization (X float [..., D], scale [D]) -> Y     over the last axis; attribute epsilon
#pragma once

#include "binding.h"

namespace edgeformer {

template <bool kMultiplies>
struct ElementwiseOp {
  static constexpr const char* kName = kMultiplies ? "Mul" : "Add";

  explicit ElementwiseOp(const Node&) {}
  void run(Call& call, Parallel& parallel) const;
};

class SimplifiedLayerNormalization {
 public:
  static constexpr char kName[] = "SimplifiedLayerNormalization";

  explicit SimplifiedLayerNormalization(const Node& node) : epsilon_(node.number("epsilon")), level_(node.level()) {}
  void run(Call& call, Parallel& parallel) const;

 private:
  float epsilon_;
  const Level& level_;
};

extern template struct ElementwiseOp<false>;
extern template struct ElementwiseOp<true>;

}  // namespace edgeformer
