#include "mat_mul.h"

#include "panels_of.h"
#include "run_rows.h"

namespace edgeformer {
namespace {

// A matrix of more is refused: sizes of kernels are ints.
constexpr std::int64_t kLargestSide = 1 << 28;

}  // namespace

FloatPanels FloatProduct::panels_of(const Node& node, std::size_t input, Numbers type, bool by_output) {
  const std::string name = node.name_of(input);
  const std::vector<std::int64_t> shape = node.constant_shape(input);
  if (shape.size() != 2 || std::min(shape[0], shape[1]) < 1 || std::max(shape[0], shape[1]) > kLargestSide) {
    node.refuse(name + " must be a matrix");
  }
  const int outputs = static_cast<int>(shape[by_output ? 0 : 1]), inputs = static_cast<int>(shape[by_output ? 1 : 0]);
  const std::size_t size = static_cast<std::size_t>(outputs) * inputs;
  const void* numbers = type == Numbers::kFloat ? static_cast<const void*>(node.constant<float>(input, name.c_str(), size))
                                                : node.constant<Bfloat16>(input, name.c_str(), size);
  PackingThreads threads(node);
  FloatPanels panels({outputs, inputs, by_output, type, numbers}, node.level().columns, threads.get());
  release(static_cast<const std::uint8_t*>(numbers), size * bytes_of(type));
  return panels;
}

void FloatProduct::run(Call& call, Parallel& parallel) const { run_rows(linear_, call, parallel); }

}  // namespace edgeformer
