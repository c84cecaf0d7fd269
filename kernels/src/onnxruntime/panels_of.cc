#include "panels_of.h"

#include <algorithm>
#include <thread>

#include "packed_integers.h"
#include "quantized_linear.h"

namespace edgeformer {
namespace {

// More threads wait for memory.
constexpr unsigned kOwnThreads = 8;

// 3, 5 or 6 where the node says that its integers lack unused bits; else 0.
int packed_bits_of(const Node& node, const WeightSizes& sizes) {
  if (!node.has_flag("packed_bits")) return 0;
  const int bits = node.positive("packed_bits"), group = packing_of(bits).group;
  if (group == 0 || product_bits(bits) != sizes.bits || sizes.block * sizes.bits / 8 % group != 0) {
    node.refuse("packed_bits is " + std::to_string(bits) + "; it must be 3 of 4 bits, or 5 or 6 of 8, in blocks of 16 or more");
  }
  return bits;
}

Weights weights_of(const Node& node, std::size_t first, const WeightSizes& sizes) {
  const std::size_t blocks = static_cast<std::size_t>(sizes.outputs) * sizes.blocks();
  const std::size_t row_bytes = (static_cast<std::size_t>(sizes.blocks()) * sizes.bits + 7) / 8;
  Weights weights{sizes.outputs, sizes.inputs, sizes.bits, sizes.block, nullptr, nullptr, nullptr, packed_bits_of(node, sizes)};
  const std::size_t bytes = blocks * sizes.block * weights.stored_bits() / 8;
  weights.integers = node.constant<std::uint8_t>(first, node.name_of(first).c_str(), bytes);
  weights.scales = node.constant<float>(first + 1, node.name_of(first + 1).c_str(), blocks);
  if (node.has_input(first + 2)) {
    const std::string name = node.name_of(first + 2);
    weights.zero_points = node.constant<std::uint8_t>(first + 2, name.c_str(), sizes.outputs * row_bytes);
  }
  const std::string reason = why_unsupported(weights);
  if (!reason.empty()) node.refuse(reason);
  return weights;
}

}  // namespace

PackingThreads::PackingThreads(const Node& node) : team_(node.team()) {
  if (team_ == nullptr) own_.emplace(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kOwnThreads)));
}

Panels stored_panels(const Node& node, std::size_t input, const WeightSizes& sizes) {
  const std::span<const std::uint8_t> stored = node.constant_bytes(input);
  const std::string reason = Panels::why_unreadable(stored, sizes, node.level().columns, node.level().byte_bias);
  if (!reason.empty()) {
    node.refuse(node.name_of(input) + " " + reason + ". Write it again with: edgeformer optimize");
  }
  return Panels(stored);
}

void note_panels(const Node& node, const Panels& panels, std::size_t input, std::initializer_list<std::size_t> others) {
  StoredForm* stored = node.stored_form();
  if (stored == nullptr) return;
  stored->inputs.resize(node.inputs(), StoredForm::kUnchanged);
  for (const std::size_t other : others) {
    if (other < stored->inputs.size()) stored->inputs[other] = StoredForm::kMissing;
  }
  stored->inputs.at(input) = static_cast<std::int64_t>(panels.bytes().size());
  stored->panels[input].assign(panels.bytes().begin(), panels.bytes().end());
}

Panels panels_of(const Node& node, std::size_t first, const WeightSizes& sizes) {
  const std::string reason = why_unsupported(sizes);
  if (!reason.empty()) node.refuse(reason);
  const auto pack = [&](Parallel& threads) {
    const Weights weights = weights_of(node, first, sizes);
    Panels panels(weights, node.level().columns, node.level().byte_bias, threads);
    release(weights.integers, weights.outputs * weights.row_bytes());
    release(weights.scales, static_cast<std::size_t>(weights.outputs) * weights.blocks());
    return panels;
  };
  return panels_of(node, first, {first + 1, first + 2}, sizes, pack);
}

}  // namespace edgeformer
