// Weights of nodes, in panels: the one place where quantized weights are packed, stored, and read again.
//
// A graph has weights in one of two forms. As exported: integers, scales and so on, which are packed when a session is
// opened. Stored, as `edgeformer optimize` writes them: the first of these inputs has the bytes of the panels, which are
// read where the file is mapped, and the others are missing.
//
// A kernel that calls panels_of in its constructor takes both. An op Packer of it (packer.h) makes the second of the first.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <map>
#include <optional>
#include <vector>

#include "binding.h"
#include "file_pages.h"
#include "panels.h"

namespace edgeformer {

// What a node becomes when its weights are stored. It collects what panels_of packs.
struct StoredForm {
  static constexpr std::int64_t kUnchanged = -1, kMissing = 0;
  std::vector<std::int64_t> inputs;  // the form of each input: one of these, or the number of bytes of its panels
  std::map<std::size_t, std::vector<std::uint8_t>> panels;  // by input
};

// Threads for packing: the session's team, or, since the session's own threads cannot be had before it runs, others.
class PackingThreads {
 public:
  explicit PackingThreads(const Node& node);
  Parallel& get() { return team_ != nullptr ? *team_ : *own_; }

 private:
  Team* team_;
  std::optional<Team> own_;
};

// The stored panels that an input of a node has.
Panels stored_panels(const Node& node, std::size_t input, const WeightSizes& sizes);

// Notes panels that stand for an input and the others, where the node is to be stored.
void note_panels(const Node& node, const Panels& panels, std::size_t input, std::initializer_list<std::size_t> others);

// The panels of a weight. Stored, `input` has them and the first of `others` is missing. Otherwise pack(threads) makes
// them of `input` and `others`.
// sizes: what the node's attributes say, and kernels support; own_zero_points is not read.
template <class F>
Panels panels_of(const Node& node, std::size_t input, std::initializer_list<std::size_t> others,
                 const WeightSizes& sizes, F pack) {
  if (!node.has_input(*others.begin())) return stored_panels(node, input, sizes);
  PackingThreads threads(node);
  Panels panels = pack(threads.get());
  note_panels(node, panels, input, others);
  return panels;
}

// The same for weights as in com.microsoft::MatMulNBits, which three inputs from `first` on have: integers, scales, and
// perhaps zero points. The pages of the file that they came from leave the process.
Panels panels_of(const Node& node, std::size_t first, const WeightSizes& sizes);

// Lets the pages of a constant that was packed leave the process, if they come from a file.
template <class T>
void release(const T* constant, std::size_t size) {
  constexpr std::size_t kMuch = 256 << 10;  // worth a look at the map of the process
  if (size * sizeof(T) >= kMuch) release_file_pages(constant, size * sizeof(T));
}

}  // namespace edgeformer
