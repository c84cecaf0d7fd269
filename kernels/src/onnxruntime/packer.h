// Packer of MatMulNBits is the op PackMatMulNBits, and so on: it makes the stored form of a node's weights (panels_of.h).
//
//   the inputs and attributes of the kernel's own op, of which only constants need to be there
//   -> inputs int64 [inputs], panels uint8 [bytes]
//
// An input of the stored node is the same as before where `inputs` has -1, missing where it has 0, and the next n bytes of
// the panels where it has n.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>

#include "panels_of.h"

namespace edgeformer {

template <class Kernel>
class Packer {
  static constexpr std::size_t kCount = std::size(Kernel::kInputs);

  static constexpr auto name() {
    std::array<char, sizeof "Pack" + sizeof Kernel::kName - 1> name{};
    std::copy_n(Kernel::kName, sizeof Kernel::kName, std::copy_n("Pack", 4, name.begin()));
    return name;
  }
  static constexpr auto inputs() {
    std::array<Formal, kCount> inputs{};
    std::transform(std::begin(Kernel::kInputs), std::end(Kernel::kInputs), inputs.begin(), optional);
    return inputs;
  }
  static constexpr auto kNameBytes = name();

 public:
  static constexpr const char* kName = kNameBytes.data();
  static constexpr auto kInputs = inputs();
  static constexpr Formal kOutputs[] = {kInt64s, kBytes};

  explicit Packer(const Node& node) { Kernel(node.to_be_stored(stored_)); }

  void run(Call& call, Parallel&) const {
    const std::vector<std::int64_t>& inputs = stored_.inputs;
    std::copy(inputs.begin(), inputs.end(), call.output<std::int64_t>(0, {static_cast<std::int64_t>(inputs.size())}));
    std::size_t size = 0;
    for (const auto& [input, panels] : stored_.panels) size += panels.size();
    std::uint8_t* to = call.output<std::uint8_t>(1, {static_cast<std::int64_t>(size)});
    for (const auto& [input, panels] : stored_.panels) to = std::copy(panels.begin(), panels.end(), to);
  }

 private:
  StoredForm stored_;
};

}  // namespace edgeformer
