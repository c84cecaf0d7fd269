// What the ops have in common: reading attributes and constants of nodes, threads, and errors as onnxruntime wants them.
//
// Files of this folder are the only ones that know onnxruntime's types.
#pragma once

// Functions of onnxruntime 1.23 are enough: quantized bundles do not load in older ones. Headers of a newer one must not
// ask for more (see registration.cc).
#include <onnxruntime_c_api.h>
#undef ORT_API_VERSION
#define ORT_API_VERSION 23
#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

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
  explicit SessionThreads(OrtKernelContext* context) : context_(context) {}
  int threads() const override;
  void run(std::size_t chunks, Task task) override;

 private:
  OrtKernelContext* context_;
};

struct StoredForm;

// The node whose kernel is being made: its attributes and constants. What is wrong with them throws Ort::Exception.
class Node {
 public:
  Node(const char* op, const OrtKernelInfo* info, const Settings& settings) : op_(op), info_(info), settings_(settings) {}

  [[noreturn]] void refuse(const std::string& reason) const;

  // The SIMD level that the kernel must use.
  const Level& level() const { return settings_.level; }
  // The team of the session; null where its kernels run on the session's threads.
  Team* team() const { return settings_.team; }

  std::size_t inputs() const { return info_.GetInputCount(); }
  bool has_input(std::size_t index) const { return index < inputs() && !info_.GetInputName(index).empty(); }
  // The same node, whose kernel notes the stored form of its weights (panels_of.h).
  Node to_be_stored(StoredForm& form) const {
    Node node = *this;
    node.stored_form_ = &form;
    return node;
  }
  StoredForm* stored_form() const { return stored_form_; }  // null: nobody asks
  // What the graph calls an input, for errors.
  std::string name_of(std::size_t index) const {
    return has_input(index) ? info_.GetInputName(index) : "input " + std::to_string(index);
  }
  std::int64_t integer(const char* attribute) const { return info_.GetAttribute<std::int64_t>(attribute); }
  std::string text(const char* attribute) const { return info_.GetAttribute<std::string>(attribute); }
  float number(const char* attribute) const { return info_.GetAttribute<float>(attribute); }
  // An attribute that counts something.
  int positive(const char* attribute) const;

  // A constant input, which must have `size` elements.
  template <class T>
  const T* constant(std::size_t index, const char* name, std::size_t size) const {
    int is_constant = 0;
    const Ort::ConstValue value = info_.GetTensorConstantInput(index, &is_constant);
    if (!is_constant) refuse(std::string(name) + " must be a constant");
    const std::size_t found = value.GetTensorTypeAndShapeInfo().GetElementCount();
    if (found != size) {
      refuse(std::string(name) + " has " + std::to_string(found) + " elements; these attributes want " +
             std::to_string(size));
    }
    return value.GetTensorData<T>();
  }

  // A constant input of bytes, of any size.
  std::span<const std::uint8_t> constant_bytes(std::size_t index) const {
    int is_constant = 0;
    const Ort::ConstValue value = info_.GetTensorConstantInput(index, &is_constant);
    if (!is_constant) refuse(name_of(index) + " must be a constant");
    return {value.GetTensorData<std::uint8_t>(), value.GetTensorTypeAndShapeInfo().GetElementCount()};
  }

 private:
  const char* op_;
  Ort::ConstKernelInfo info_;
  const Settings& settings_;
  StoredForm* stored_form_ = nullptr;
};

// One call of a kernel.
class Call {
 public:
  Call(const char* op, OrtKernelContext* context) : op_(op), context_(context), of_session_(context) {}

  [[noreturn]] void refuse(const std::string& reason) const;

  bool has_input(std::size_t index) const;
  std::vector<std::int64_t> shape(std::size_t index) const;
  template <class T>
  const T* input(std::size_t index) const {
    return context_.GetInput(index).GetTensorData<T>();
  }
  template <class T>
  T* output(std::size_t index, const std::vector<std::int64_t>& shape) const {
    return context_.GetOutput(index, shape).GetTensorMutableData<T>();
  }
  // The team, or the session's threads where it is null.
  Parallel& threads(Team* team) { return team != nullptr ? static_cast<Parallel&>(*team) : of_session_; }

 private:
  const char* op_;
  Ort::KernelContext context_;
  SessionThreads of_session_;
};

// An input or output of an op.
struct Formal {
  ONNXTensorElementDataType type;
  OrtCustomOpInputOutputCharacteristic presence = INPUT_OUTPUT_REQUIRED;
};

inline constexpr Formal kFloats{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT};
inline constexpr Formal kInt64s{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64};
inline constexpr Formal kInt32s{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};
inline constexpr Formal kBytes{ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8};
inline constexpr Formal kSignedBytes{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8};

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

constexpr Formal optional(Formal formal) { return {formal.type, INPUT_OUTPUT_OPTIONAL}; }

// What onnxruntime keeps of a node: its kernel, and the threads of its session.
template <class Kernel>
struct NodeState {
  Kernel kernel;
  Team* team;  // null: the session's threads

  OrtStatusPtr ComputeV2(OrtKernelContext* context) {
    try {
      Call call(Kernel::kName, context);
      kernel.run(call, call.threads(team));
      return nullptr;
    } catch (const std::exception& error) {
      return Ort::Status(error).release();
    }
  }
};

// An op. Kernel has kName, kInputs, kOutputs (arrays of Formal), a constructor that reads a Node, and
// run(Call&, Parallel&), which throws where an input is wrong.
template <class Kernel>
class Op : public Ort::CustomOpBase<Op<Kernel>, NodeState<Kernel>, true> {
 public:
  explicit Op(const Settings& settings) : settings_(settings) {}

  OrtStatusPtr CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
    try {
      *kernel = new NodeState<Kernel>{Kernel(Node(Kernel::kName, info, settings_)), settings_.team};
      return nullptr;
    } catch (const std::exception& error) {
      return Ort::Status(error).release();
    }
  }

  const char* GetName() const { return Kernel::kName; }
  std::size_t GetInputTypeCount() const { return std::size(Kernel::kInputs); }
  ONNXTensorElementDataType GetInputType(std::size_t index) const { return Kernel::kInputs[index].type; }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t index) const {
    return Kernel::kInputs[index].presence;
  }
  std::size_t GetOutputTypeCount() const { return std::size(Kernel::kOutputs); }
  ONNXTensorElementDataType GetOutputType(std::size_t index) const { return Kernel::kOutputs[index].type; }
  OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(std::size_t index) const {
    return Kernel::kOutputs[index].presence;
  }

 private:
  Settings settings_;
};

}  // namespace edgeformer
