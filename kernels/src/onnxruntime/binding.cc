#include "binding.h"

#include <algorithm>
#include <thread>

namespace edgeformer {
namespace {

// The largest size that a node may name: products of two fit into 64 bits.
constexpr std::int64_t kMostOfASize = 1 << 28;

[[noreturn]] void refuse_by_name(const char* op, const std::string& reason) {
  throw Ort::Exception(std::string("edgeformer::") + op + ": " + reason, ORT_INVALID_ARGUMENT);
}

}  // namespace

// onnxruntime does not tell; the number only decides how finely work is cut.
int SessionThreads::threads() const { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

void SessionThreads::run(std::size_t chunks, Task task) {
  if (chunks < 2) return Serial().run(chunks, task);
  const auto call = [](void* object, std::size_t chunk) { (*static_cast<const Task*>(object))(chunk); };
  Ort::KernelContext(context_).ParallelFor(call, chunks, 0, &task);
}

void Node::refuse(const std::string& reason) const { refuse_by_name(op_, reason); }

int Node::positive(const char* attribute) const {
  const std::int64_t value = integer(attribute);
  if (value < 1 || value > kMostOfASize) refuse(std::string(attribute) + " is " + std::to_string(value));
  return static_cast<int>(value);
}

void Call::refuse(const std::string& reason) const { refuse_by_name(op_, reason); }

bool Call::has_input(std::size_t index) const {
  return index < context_.GetInputCount() && static_cast<const OrtValue*>(context_.GetInput(index)) != nullptr;
}

std::vector<std::int64_t> Call::shape(std::size_t index) const {
  return context_.GetInput(index).GetTensorTypeAndShapeInfo().GetShape();
}

}  // namespace edgeformer
