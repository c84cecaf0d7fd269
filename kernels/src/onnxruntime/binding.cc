#include "binding.h"

#include <algorithm>
#include <thread>

namespace edgeformer {
namespace {

// The largest size that a node may name: products of two fit into 64 bits.
constexpr std::int64_t kMostOfASize = 1 << 28;

[[noreturn]] void refuse_by_name(const char* op, const std::string& reason) {
  throw std::runtime_error(std::string("edgeformer::") + op + ": " + reason);
}

// The sizes and the type of a tensor, as long as they are looked at.
class TensorInfo {
 public:
  explicit TensorInfo(const onnxruntime::Value& value) {
    onnxruntime::check(onnxruntime::GetTensorTypeAndShape(&value, &info_));
  }
  ~TensorInfo() { onnxruntime::ReleaseTensorTypeAndShapeInfo(info_); }
  TensorInfo(const TensorInfo&) = delete;
  TensorInfo& operator=(const TensorInfo&) = delete;

  std::size_t elements() const {
    std::size_t count = 0;
    onnxruntime::check(onnxruntime::GetTensorShapeElementCount(info_, &count));
    return count;
  }

  std::vector<std::int64_t> shape() const {
    std::size_t count = 0;
    onnxruntime::check(onnxruntime::GetDimensionsCount(info_, &count));
    std::vector<std::int64_t> sizes(count);
    onnxruntime::check(onnxruntime::GetDimensions(info_, sizes.data(), count));
    return sizes;
  }

  onnxruntime::ElementType type() const {
    onnxruntime::ElementType type{};
    onnxruntime::check(onnxruntime::GetTensorElementType(info_, &type));
    return type;
  }

 private:
  onnxruntime::TensorTypeAndShapeInfo* info_ = nullptr;
};

Tensor tensor_of(const onnxruntime::Value& value) {
  const TensorInfo info(value);
  return {info.shape(), const_cast<void*>(numbers_of(value)), info.type()};
}

// Null where an optional input is missing.
const onnxruntime::Value* value_of(const onnxruntime::KernelContext* context, std::size_t index) {
  const onnxruntime::Value* value = nullptr;
  onnxruntime::check(onnxruntime::KernelContext_GetInput(context, index, &value));
  return value;
}

}  // namespace

// onnxruntime does not tell; the number only decides how finely work is cut.
int SessionThreads::threads() const { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

void SessionThreads::run(std::size_t chunks, Task task) {
  if (chunks < 2) return Serial().run(chunks, task);
  const auto call = [](void* object, std::size_t chunk) { (*static_cast<const Task*>(object))(chunk); };
  onnxruntime::check(onnxruntime::KernelContext_ParallelFor(context_, call, chunks, 0, &task));
}

const void* numbers_of(const onnxruntime::Value& value) {
  void* numbers = nullptr;
  onnxruntime::check(onnxruntime::GetTensorMutableData(const_cast<onnxruntime::Value*>(&value), &numbers));
  return numbers;
}

std::size_t elements_of(const onnxruntime::Value& value) { return TensorInfo(value).elements(); }

void Node::refuse(const std::string& reason) const { refuse_by_name(op_, reason); }

int Node::positive(const char* attribute) const {
  const std::int64_t value = integer(attribute);
  if (value < 1 || value > kMostOfASize) refuse(std::string(attribute) + " is " + std::to_string(value));
  return static_cast<int>(value);
}

std::size_t Node::inputs() const {
  if (inputs_ != nullptr) return inputs_->size();
  std::size_t count = 0;
  onnxruntime::check(onnxruntime::KernelInfo_GetInputCount(info_, &count));
  return count;
}

std::string Node::input_name(std::size_t index) const {
  return onnxruntime::text_of(
      [&](char* to, std::size_t* size) { return onnxruntime::KernelInfo_GetInputName(info_, place(index), to, size); });
}

std::int64_t Node::integer(const char* attribute) const {
  std::int64_t value = 0;
  onnxruntime::check(onnxruntime::KernelInfoGetAttribute_int64(info_, name_in_node(attribute).c_str(), &value));
  return value;
}

bool Node::has_flag(const char* attribute) const {
  std::int64_t value = 0;
  onnxruntime::Status* missing = onnxruntime::KernelInfoGetAttribute_int64(info_, name_in_node(attribute).c_str(), &value);
  if (missing != nullptr) onnxruntime::ReleaseStatus(missing);
  return missing == nullptr && value != 0;
}

float Node::number(const char* attribute) const {
  float value = 0;
  onnxruntime::check(onnxruntime::KernelInfoGetAttribute_float(info_, name_in_node(attribute).c_str(), &value));
  return value;
}

std::string Node::text(const char* attribute) const {
  const std::string name = name_in_node(attribute);
  return onnxruntime::text_of([&](char* to, std::size_t* size) {
    return onnxruntime::KernelInfoGetAttribute_string(info_, name.c_str(), to, size);
  });
}

const onnxruntime::Value* Node::constant_or_null(std::size_t index) const {
  int is_constant = 0;
  const onnxruntime::Value* value = nullptr;
  const std::size_t at = place(index);
  if (at != kMissing) onnxruntime::check(onnxruntime::KernelInfoGetConstantInput_tensor(info_, at, &is_constant, &value));
  return is_constant ? value : nullptr;
}

const onnxruntime::Value& Node::constant_value(std::size_t index, const std::string& name) const {
  const onnxruntime::Value* value = constant_or_null(index);
  if (value == nullptr) refuse(name + " must be a constant");
  return *value;
}

std::vector<std::int64_t> Node::constant_integers(std::size_t index, const char* name) const {
  const onnxruntime::Value& value = constant_value(index, name);
  const auto* numbers = static_cast<const std::int64_t*>(numbers_of(value));
  return {numbers, numbers + elements_of(value)};
}

Tensor Node::if_constant(std::size_t index) const {
  const onnxruntime::Value* value = constant_or_null(index);
  return value == nullptr ? Tensor{} : tensor_of(*value);
}

std::vector<std::int64_t> Node::constant_shape(std::size_t index) const {
  return TensorInfo(constant_value(index, name_of(index))).shape();
}

std::span<const std::uint8_t> Node::constant_bytes(std::size_t index) const {
  const onnxruntime::Value& value = constant_value(index, name_of(index));
  return {static_cast<const std::uint8_t*>(numbers_of(value)), elements_of(value)};
}

void Call::refuse(const std::string& reason) const { refuse_by_name(op_, reason); }

bool NodeValues::has_input(std::size_t index) const {
  std::size_t count = 0;
  onnxruntime::check(onnxruntime::KernelContext_GetInputCount(context_, &count));
  return index < count && value_of(context_, index) != nullptr;
}

std::vector<std::int64_t> NodeValues::shape(std::size_t index) const { return TensorInfo(*value_of(context_, index)).shape(); }

const void* NodeValues::input(std::size_t index) const { return numbers_of(*value_of(context_, index)); }

Tensor NodeValues::tensor(std::size_t index) const { return tensor_of(*value_of(context_, index)); }

void* NodeValues::output(std::size_t index, const std::vector<std::int64_t>& shape, std::size_t) {
  onnxruntime::Value* value = nullptr;
  onnxruntime::check(onnxruntime::KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &value));
  return const_cast<void*>(numbers_of(*value));
}

}  // namespace edgeformer
