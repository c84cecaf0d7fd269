// FusedNodes (any tensors) -> any tensors
//
// Several ops of this library as one node: to call a node takes onnxruntime longer than many of these ops need. Attribute
// `steps` has a line for each op, in the order in which they run:
//
//     MatMulNBits i0 i3 i4 - -> t1
//
// its name, its inputs, and its outputs. i0 and o0 are the first input and output of the node, t0 is a tensor between the
// ops, and - is an input that the op does not have. Attributes of the first op are those of the node whose names begin with
// "0.", and so on. An input of an op may be an output of the node that an earlier op has written.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "binding.h"

namespace edgeformer {

class FusedNodes {
 public:
  static constexpr char kName[] = "FusedNodes";
  static constexpr Formal kInputs[] = {kAnyTensors};
  static constexpr Formal kOutputs[] = {kAnyTensors};

  explicit FusedNodes(const Node& node);
  void run(Call& call, Parallel& parallel) const;

  // Where a value is.
  struct Place {
    char of;  // 'i', 'o', 't' or '-'
    std::size_t index;
  };

  // The kernel of an op.
  class Kernel {
   public:
    virtual ~Kernel() = default;
    virtual const char* name() const = 0;
    virtual std::span<const Formal> inputs() const = 0;
    virtual std::span<const Formal> outputs() const = 0;
    virtual void run(Call& call, Parallel& parallel) const = 0;
  };

 private:
  struct Step {
    std::unique_ptr<const Kernel> kernel;
    std::vector<Place> inputs, outputs;
  };

  std::vector<Step> steps_;
  std::vector<Tensor> constants_;  // inputs of the node, without numbers where they are none
};

}  // namespace edgeformer
