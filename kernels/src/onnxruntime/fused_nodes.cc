#include "fused_nodes.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "ops.h"

namespace edgeformer {
namespace {

using Place = FusedNodes::Place;

template <class Of>
class KernelOf final : public FusedNodes::Kernel {
 public:
  explicit KernelOf(const Node& node) : kernel_(node) {}
  const char* name() const override { return Of::kName; }
  std::span<const Formal> inputs() const override { return Of::kInputs; }
  std::span<const Formal> outputs() const override { return Of::kOutputs; }
  void run(Call& call, Parallel& parallel) const override { kernel_.run(call, parallel); }

 private:
  Of kernel_;
};

using Make = std::unique_ptr<const FusedNodes::Kernel> (*)(const Node& node, const std::string& prefix,
                                                           const std::vector<std::size_t>& inputs);

template <class Of>
std::unique_ptr<const FusedNodes::Kernel> make(const Node& node, const std::string& prefix,
                                               const std::vector<std::size_t>& inputs) {
  return std::make_unique<KernelOf<Of>>(node.part(Of::kName, prefix, inputs));
}

struct Maker {
  Make make;
  std::span<const Formal> inputs;
};

template <class... Of>
std::map<std::string, Maker> makers_of(KernelList<Of...>) {
  return {{Of::kName, {make<Of>, Of::kInputs}}...};
}

// The type of an input or output; the last one stands for those behind it.
onnxruntime::ElementType type_of(std::span<const Formal> formal, std::size_t index) {
  return formal[std::min(index, formal.size() - 1)].type;
}

// Of the number of a value: a graph has fewer, and memory is bounded by it.
constexpr std::size_t kMostDigits = 5;

Place place_of(const Node& node, const std::string& text) {
  const bool is_number = text.size() > 1 && text.size() <= kMostDigits + 1 && text.find_first_not_of("0123456789", 1) == text.npos;
  if (text != "-" && (std::string("iot").find(text[0]) == std::string::npos || !is_number)) {
    node.refuse("steps has " + text + " instead of a value");
  }
  return {text[0], text == "-" ? 0 : std::stoul(text.substr(1))};
}

// Tensors of one call that are between the ops, and the inputs and outputs of the node. onnxruntime is asked for each of
// these once: it takes 0.2 µs for a shape. The memory serves other calls later.
class Tensors {
 public:
  void begin(const Call& call, const std::vector<Tensor>& constants) {
    node_ = &call, constants_ = &constants;
    ++number_;
    if (inputs_.size() < constants.size()) inputs_.resize(constants.size());
  }

  const Tensor& operator[](const Place& place) {
    if (place.of != 'i') return written(place.of == 't' ? temporaries_ : outputs_, place);
    const Tensor& constant = constants_->at(place.index);
    if (constant.numbers != nullptr) return constant;
    Slot& input = inputs_[place.index];
    if (input.call != number_) {
      input.tensor = static_cast<const NodeValues&>(node_->values()).tensor(place.index);
      input.call = number_;
    }
    return input.tensor;
  }

  void* write(const Place& place, const std::vector<std::int64_t>& shape, std::size_t bytes, onnxruntime::ElementType type) {
    Slot& to = slot(place);
    void* const numbers = place.of == 't' ? to.memory.at_least(bytes) : node_->values().output(place.index, shape, bytes);
    to.tensor = {shape, numbers, type};
    to.call = number_;
    ++to.writes;
    to.owner = kNone;
    return numbers;
  }

  // Makes a temporary the numbers of another value.
  void lend(const Place& place, const std::vector<std::int64_t>& shape, const Place& from) {
    const Tensor& source = (*this)[from];
    Tensor lent{shape, source.numbers, source.type};
    std::size_t owner = kNone;
    if (from.of == 't') owner = temporaries_[from.index].owner == kNone ? from.index : temporaries_[from.index].owner;
    Slot& to = slot(place);
    to.tensor = std::move(lent);
    to.call = number_;
    ++to.writes;
    to.owner = owner;
    to.writes_of_owner = owner == kNone ? 0 : temporaries_[owner].writes;
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  struct Slot {
    std::uint64_t call = 0;  // that wrote or read it
    Tensor tensor;
    GrowingArray<std::uint8_t> memory;  // of a temporary
    std::uint64_t writes = 0;
    // The temporary whose numbers it has, if they are not its own, and the writes to that until then.
    std::size_t owner = kNone;
    std::uint64_t writes_of_owner = 0;
  };

  Slot& slot(const Place& place) {
    std::vector<Slot>& all = place.of == 't' ? temporaries_ : outputs_;
    if (place.index >= all.size()) all.resize(place.index + 1);
    return all[place.index];
  }

  const Tensor& written(const std::vector<Slot>& all, const Place& place) const {
    if (place.index >= all.size() || all[place.index].call != number_) {
      node_->refuse("steps reads " + (place.of + std::to_string(place.index)) + " before it is written");
    }
    const Slot& found = all[place.index];
    if (found.owner != kNone && temporaries_[found.owner].writes != found.writes_of_owner) {
      node_->refuse("steps reads " + (place.of + std::to_string(place.index)) + " behind a write to what it shares");
    }
    return found.tensor;
  }

  const Call* node_ = nullptr;
  const std::vector<Tensor>* constants_ = nullptr;
  std::uint64_t number_ = 0;  // of the call
  std::vector<Slot> temporaries_, inputs_, outputs_;
};

// Tensors for the time of a call. There are as many as calls of all threads have run at once.
class LentTensors {
 public:
  LentTensors() {
    const std::lock_guard lock(mutex());
    if (!free().empty()) {
      tensors_ = std::move(free().back());
      free().pop_back();
    } else {
      tensors_ = std::make_unique<Tensors>();
    }
  }
  ~LentTensors() {
    const std::lock_guard lock(mutex());
    free().push_back(std::move(tensors_));
  }
  LentTensors(const LentTensors&) = delete;
  LentTensors& operator=(const LentTensors&) = delete;

  Tensors& get() { return *tensors_; }

 private:
  // They are never destroyed: threads may outlive static objects.
  static std::mutex& mutex() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
  static std::vector<std::unique_ptr<Tensors>>& free() {
    static auto& free = *new std::vector<std::unique_ptr<Tensors>>;
    return free;
  }

  std::unique_ptr<Tensors> tensors_;
};

// The values of one of the ops.
class StepValues final : public Values {
 public:
  StepValues(Tensors& tensors, const FusedNodes::Kernel& kernel, const std::vector<Place>& read,
             const std::vector<Place>& written)
      : tensors_(tensors), kernel_(kernel), read_(read), written_(written) {}

  bool has_input(std::size_t index) const override { return index < read_.size() && read_[index].of != '-'; }
  std::vector<std::int64_t> shape(std::size_t index) const override { return tensors_[read_.at(index)].shape; }
  const void* input(std::size_t index) const override {
    const Tensor& tensor = tensors_[read_.at(index)];
    if (tensor.type != type_of(kernel_.inputs(), index)) {
      Call(kernel_.name(), const_cast<StepValues&>(*this)).refuse("input " + std::to_string(index) + " is of another type");
    }
    return tensor.numbers;
  }
  void* output(std::size_t index, const std::vector<std::int64_t>& shape, std::size_t bytes) override {
    if (index >= written_.size()) {
      Call(kernel_.name(), *this).refuse("steps has no place for output " + std::to_string(index));
    }
    return tensors_.write(written_[index], shape, bytes, type_of(kernel_.outputs(), index));
  }
  bool lend(std::size_t output, const std::vector<std::int64_t>& shape, std::size_t input) override {
    const Place to = written_.at(output);
    if (to.of == 't') tensors_.lend(to, shape, read_.at(input));
    return to.of == 't';
  }

 private:
  Tensors& tensors_;
  const FusedNodes::Kernel& kernel_;
  const std::vector<Place>&read_, &written_;
};

}  // namespace

FusedNodes::FusedNodes(const Node& node) {
  static const std::map<std::string, Maker> makers = makers_of(FusedKernels());
  for (std::size_t input = 0; input < node.inputs(); ++input) constants_.push_back(node.if_constant(input));
  std::istringstream lines(node.text("steps"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Step step;
    std::string op, word;
    words >> op;
    std::vector<Place>* to = &step.inputs;
    while (words >> word) {
      if (word == "->") {
        to = &step.outputs;
      } else {
        to->push_back(place_of(node, word));
      }
    }
    const auto maker = makers.find(op);
    if (maker == makers.end()) node.refuse("steps has " + op + ", which is not an op of this library");
    for (const Place& place : step.outputs) {
      if (place.of != 'o' && place.of != 't') node.refuse("steps writes to what " + op + " may only read");
    }
    std::vector<std::size_t> inputs;
    const auto is_missing = [&](std::size_t index) { return index >= step.inputs.size() || step.inputs[index].of == '-'; };
    for (std::size_t index = 0; index < maker->second.inputs.size(); ++index) {
      if (maker->second.inputs[index].presence == onnxruntime::Presence::kRequired && is_missing(index)) {
        node.refuse("steps has " + op + " without its input " + std::to_string(index));
      }
    }
    for (const Place& place : step.inputs) {
      // The kernel reads constants as it is made.
      if (place.of == 'i' && constants_.at(place.index).numbers != nullptr &&
          constants_[place.index].type != type_of(maker->second.inputs, inputs.size())) {
        node.refuse("a constant that " + op + " reads is of another type");
      }
      inputs.push_back(place.of == 'i' ? place.index : Node::kMissing);
    }
    step.kernel = maker->second.make(node, std::to_string(steps_.size()) + ".", inputs);
    steps_.push_back(std::move(step));
  }
}

void FusedNodes::run(Call& call, Parallel& parallel) const {
  LentTensors lent;
  Tensors& tensors = lent.get();
  tensors.begin(call, constants_);
  for (const Step& step : steps_) {
    StepValues values(tensors, *step.kernel, step.inputs, step.outputs);
    Call of_step(step.kernel->name(), values);
    step.kernel->run(of_step, parallel);
  }
}

}  // namespace edgeformer
