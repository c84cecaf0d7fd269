// Light ops of ONNX that FusedNodes runs beside the library's own, so that they do not stand between these. onnxruntime has
// kernels of its own for them, so they are not registered.
//
//   Add, Mul, Div (A float, B float) -> C                         of shapes that broadcast, as numpy's do
//   Sigmoid, Softplus (X float) -> Y
//   SimplifiedLayerNormalization (X float [..., D], scale [D]) -> Y     over the last axis; attribute epsilon
//   Split (X float, split int64) -> ...                           of the last axis
//   Reshape (X float, shape int64) -> Y                           0 for a size of X, and -1 for what is left
//   Unsqueeze (X float, axes int64) -> Y
//
// split, shape and axes are constants. The results of the last two are X itself, where nothing but ops here read them.
#pragma once

#include "binding.h"

namespace edgeformer {

template <char kSign>
struct ElementwiseOp {
  static constexpr const char* kName = kSign == '+' ? "Add" : kSign == '*' ? "Mul" : "Div";
  static constexpr Formal kInputs[] = {kFloats, kFloats};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit ElementwiseOp(const Node&) {}
  void run(Call& call, Parallel& parallel) const;
};

template <Map kMap>
class MapOp {
 public:
  static constexpr const char* kName = kMap == Map::kSigmoid ? "Sigmoid" : "Softplus";
  static constexpr Formal kInputs[] = {kFloats};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit MapOp(const Node& node) : level_(node.level()) {}
  void run(Call& call, Parallel& parallel) const;

 private:
  const Level& level_;
};

class SimplifiedLayerNormalization {
 public:
  static constexpr char kName[] = "SimplifiedLayerNormalization";
  static constexpr Formal kInputs[] = {kFloats, kFloats};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit SimplifiedLayerNormalization(const Node& node) : epsilon_(node.number("epsilon")), level_(node.level()) {}
  void run(Call& call, Parallel& parallel) const;

 private:
  float epsilon_;
  const Level& level_;
};

class Split {
 public:
  static constexpr char kName[] = "Split";
  static constexpr Formal kInputs[] = {kFloats, kInt64s};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit Split(const Node& node);
  void run(Call& call, Parallel& parallel) const;

 private:
  std::vector<std::int64_t> widths_;
};

template <bool kUnsqueezes>
class ShapeOp {
 public:
  static constexpr const char* kName = kUnsqueezes ? "Unsqueeze" : "Reshape";
  static constexpr Formal kInputs[] = {kFloats, kInt64s};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit ShapeOp(const Node& node);
  void run(Call& call, Parallel& parallel) const;

 private:
  std::vector<std::int64_t> shape_of(const Call& call, const std::vector<std::int64_t>& given) const;

  std::vector<std::int64_t> sizes_;  // or axes
};

extern template struct ElementwiseOp<'+'>;
extern template struct ElementwiseOp<'*'>;
extern template struct ElementwiseOp<'/'>;
extern template class MapOp<Map::kSigmoid>;
extern template class MapOp<Map::kSoftplus>;
extern template class ShapeOp<false>;
extern template class ShapeOp<true>;

using LightOps = KernelList<ElementwiseOp<'+'>, ElementwiseOp<'*'>, ElementwiseOp<'/'>, MapOp<Map::kSigmoid>, MapOp<Map::kSoftplus>,
                            SimplifiedLayerNormalization, Split, ShapeOp<false>, ShapeOp<true>>;

}  // namespace edgeformer
