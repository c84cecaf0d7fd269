// What the ops have in common: reading attributes and constants of nodes, threads, and errors as onnxruntime wants them.
//
// Files of this folder are the only ones that know onnxruntime's types (abi.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "abi.h"
#include "level.h"
#include "parallel.h"
#include "team.h"

namespace edgeformer {

// What the options of a session say about kernels.
struct Settings {
  Team* team;  // null: the session's threads
  const Level& level;
};

// The threads of a session, during one call of a kernel.
class SessionThreads final : public Parallel {
 public:
  explicit SessionThreads(onnxruntime::KernelContext* context) : context_(context) {}
  int threads() const override;
  void run(std::size_t chunks, Task task) override;

 private:
  onnxruntime::KernelContext* context_;
};

struct StoredForm;

// A tensor whose numbers others own.
struct Tensor {
  std::vector<std::int64_t> shape;
  void* numbers = nullptr;
  onnxruntime::ElementType type = onnxruntime::ElementType::kUndefined;
};

// The numbers of a tensor, and how many it has.
const void* numbers_of(const onnxruntime::Value& value);
std::size_t elements_of(const onnxruntime::Value& value);

// The node whose kernel is being made: its attributes and constants. What is wrong with them throws std::runtime_error.
class Node {
 public:
  static constexpr std::size_t kMissing = std::numeric_limits<std::size_t>::max();

  Node(const char* op, const onnxruntime::KernelInfo* info, const Settings& settings)
      : op_(op), info_(info), settings_(settings) {}

  // One of several ops that the node stands for. prefix: of the names of its attributes. inputs: those of the node that
  // it has, kMissing for others; they must outlive it.
  Node part(const char* op, const std::string& prefix, const std::vector<std::size_t>& inputs) const {
    Node part = *this;
    part.op_ = op, part.prefix_ = prefix, part.inputs_ = &inputs;
    return part;
  }

  [[noreturn]] void refuse(const std::string& reason) const;

  // The SIMD level that the kernel must use.
  const Level& level() const { return settings_.level; }
  // The team of the session; null where its kernels run on the session's threads.
  Team* team() const { return settings_.team; }

  std::size_t inputs() const;
  bool has_input(std::size_t index) const {
    return index < inputs() && place(index) != kMissing && !input_name(index).empty();
  }

  // The same node, whose kernel notes the stored form of its weights (panels_of.h).
  Node to_be_stored(StoredForm& form) const {
    Node node = *this;
    node.stored_form_ = &form;
    return node;
  }
  StoredForm* stored_form() const { return stored_form_; }  // null: nobody asks
  // What the graph calls an input, for errors.
  std::string name_of(std::size_t index) const {
    return has_input(index) ? input_name(index) : "input " + std::to_string(index);
  }
  std::int64_t integer(const char* attribute) const;
  std::string text(const char* attribute) const;
  bool has_flag(const char* attribute) const;  // whether it is there, and not 0
  float number(const char* attribute) const;
  // An attribute that counts something.
  int positive(const char* attribute) const;

  // A constant input, which must have `size` elements.
  template <class T>
  const T* constant(std::size_t index, const char* name, std::size_t size) const {
    const onnxruntime::Value& value = constant_value(index, name);
    const std::size_t found = elements_of(value);
    if (found != size) {
      refuse(std::string(name) + " has " + std::to_string(found) + " elements; these attributes want " +
             std::to_string(size));
    }
    return static_cast<const T*>(numbers_of(value));
  }

  // A constant input of integers, of any number.
  std::vector<std::int64_t> constant_integers(std::size_t index, const char* name) const;

  // An input, if it is a constant; no numbers otherwise.
  Tensor if_constant(std::size_t index) const;

  // The sizes of a constant input.
  std::vector<std::int64_t> constant_shape(std::size_t index) const;

  // A constant input of bytes, of any size.
  std::span<const std::uint8_t> constant_bytes(std::size_t index) const;

 private:
  // The index of an input among those that onnxruntime knows.
  std::size_t place(std::size_t index) const { return inputs_ == nullptr ? index : inputs_->at(index); }
  std::string name_in_node(const char* attribute) const { return prefix_ + attribute; }
  std::string input_name(std::size_t index) const;
  const onnxruntime::Value* constant_or_null(std::size_t index) const;
  const onnxruntime::Value& constant_value(std::size_t index, const std::string& name) const;

  const char* op_;
  const onnxruntime::KernelInfo* info_;
  const Settings& settings_;
  StoredForm* stored_form_ = nullptr;
  std::string prefix_;
  const std::vector<std::size_t>* inputs_ = nullptr;  // null: all that the node has
};

// The inputs and outputs of one call of a kernel.
class Values {
 public:
  virtual ~Values() = default;
  virtual bool has_input(std::size_t index) const = 0;
  virtual std::vector<std::int64_t> shape(std::size_t index) const = 0;  // of an input
  virtual const void* input(std::size_t index) const = 0;
  // Memory for an output; bytes: those of all its numbers.
  virtual void* output(std::size_t index, const std::vector<std::int64_t>& shape, std::size_t bytes) = 0;
  // Makes an output the numbers of an input, in another shape; returns whether it could.
  virtual bool lend(std::size_t, const std::vector<std::int64_t>&, std::size_t) { return false; }
};

// Those of a node, as onnxruntime has them.
class NodeValues final : public Values {
 public:
  explicit NodeValues(onnxruntime::KernelContext* context) : context_(context) {}
  bool has_input(std::size_t index) const override;
  std::vector<std::int64_t> shape(std::size_t index) const override;
  const void* input(std::size_t index) const override;
  void* output(std::size_t index, const std::vector<std::int64_t>& shape, std::size_t bytes) override;
  Tensor tensor(std::size_t index) const;  // an input

 private:
  onnxruntime::KernelContext* context_;
};

// One call of a kernel.
class Call {
 public:
  Call(const char* op, Values& values) : op_(op), values_(values) {}

  [[noreturn]] void refuse(const std::string& reason) const;

  bool has_input(std::size_t index) const { return values_.has_input(index); }
  std::vector<std::int64_t> shape(std::size_t index) const { return values_.shape(index); }
  template <class T>
  const T* input(std::size_t index) const {
    return static_cast<const T*>(values_.input(index));
  }
  template <class T>
  T* output(std::size_t index, const std::vector<std::int64_t>& shape) const {
    std::size_t bytes = sizeof(T);
    for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
    return static_cast<T*>(values_.output(index, shape, bytes));
  }
  Values& values() const { return values_; }

 private:
  const char* op_;
  Values& values_;
};

// An input or output of an op.
struct Formal {
  onnxruntime::ElementType type;
  onnxruntime::Presence presence = onnxruntime::Presence::kRequired;
};

inline constexpr Formal kFloats{onnxruntime::ElementType::kFloat};
inline constexpr Formal kHalves{onnxruntime::ElementType::kHalf};
inline constexpr Formal kBfloats{onnxruntime::ElementType::kBfloat16};
inline constexpr Formal kInt64s{onnxruntime::ElementType::kInt64};
inline constexpr Formal kInt32s{onnxruntime::ElementType::kInt32};
inline constexpr Formal kBools{onnxruntime::ElementType::kBool};
inline constexpr Formal kBytes{onnxruntime::ElementType::kUint8};
inline constexpr Formal kSignedBytes{onnxruntime::ElementType::kInt8};
// Any number of tensors, at least one, of any types.
inline constexpr Formal kAnyTensors{onnxruntime::ElementType::kUndefined, onnxruntime::Presence::kVariadic};

template <std::size_t kCount>
constexpr std::array<Formal, kCount> floats() {
  std::array<Formal, kCount> all;
  all.fill(kFloats);
  return all;
}

template <std::size_t kCount, std::size_t kAll>
constexpr std::array<Formal, kCount> first_of(const std::array<Formal, kAll>& all) {
  std::array<Formal, kCount> first;
  std::copy_n(all.begin(), kCount, first.begin());
  return first;
}

constexpr Formal optional(Formal formal) { return {formal.type, onnxruntime::Presence::kOptional}; }

template <class... Kernels>
struct KernelList {};

// What onnxruntime keeps of a node: its kernel, and the threads of its session.
template <class Kernel>
struct NodeState {
  Kernel kernel;
  Team* team;  // null: the session's threads

};

// An op. Kernel has kName, kInputs, kOutputs (arrays of Formal), a constructor that reads a Node, and
// run(Call&, Parallel&), which throws where an input is wrong.
template <class Kernel>
class Op : public onnxruntime::CustomOp {
  using Self = const onnxruntime::CustomOp*;
  using State = NodeState<Kernel>;

 public:
  explicit Op(const Settings& settings) : CustomOp{}, settings_(settings) {
    version = onnxruntime::kApiVersion;
    GetName = [](Self) { return static_cast<const char*>(Kernel::kName); };
    GetExecutionProviderType = [](Self) -> const char* { return nullptr; };  // the CPU's
    GetInputTypeCount = [](Self) { return std::size(Kernel::kInputs); };
    GetInputType = [](Self, std::size_t index) { return Kernel::kInputs[index].type; };
    GetInputCharacteristic = [](Self, std::size_t index) { return Kernel::kInputs[index].presence; };
    GetInputMemoryType = [](Self, std::size_t) { return onnxruntime::MemoryType::kDefault; };
    GetOutputTypeCount = [](Self) { return std::size(Kernel::kOutputs); };
    GetOutputType = [](Self, std::size_t index) { return Kernel::kOutputs[index].type; };
    GetOutputCharacteristic = [](Self, std::size_t index) { return Kernel::kOutputs[index].presence; };
    GetVariadicInputMinArity = GetVariadicOutputMinArity = [](Self) { return 1; };
    GetVariadicInputHomogeneity = GetVariadicOutputHomogeneity = [](Self) { return 0; };
    GetStartVersion = [](Self) { return 1; };
    GetEndVersion = [](Self) { return std::numeric_limits<int>::max(); };
    CreateKernelV2 = [](Self self, const onnxruntime::Api*, const onnxruntime::KernelInfo* info, void** kernel) {
      return onnxruntime::status_of([&] {
        const Settings& settings = static_cast<const Op*>(self)->settings_;
        *kernel = new State{Kernel(Node(Kernel::kName, info, settings)), settings.team};
      });
    };
    KernelComputeV2 = [](void* kernel, onnxruntime::KernelContext* context) {
      return onnxruntime::status_of([&] {
        const State& state = *static_cast<const State*>(kernel);
        NodeValues values(context);
        Call call(Kernel::kName, values);
        SessionThreads of_session(context);
        state.kernel.run(call, state.team != nullptr ? static_cast<Parallel&>(*state.team) : of_session);
      });
    };
    KernelDestroy = [](void* kernel) { delete static_cast<State*>(kernel); };
  }

 private:
  Settings settings_;
};

}  // namespace edgeformer
