// What the library says of itself, for programs that have to know before they register it. It calls nothing of
// onnxruntime. Python reads it by ctypes (runtime/sessions/kernels.py).

#include <string>

#include "export.h"
#include "level.h"
#include "ops.h"

namespace edgeformer {
namespace {

// Version of the contract between graphs and ops: it grows when an op gets other inputs, outputs or attributes.
constexpr int kContract = 4;

std::string quoted(const std::string& text) { return '"' + text + '"'; }

std::string list_of(const std::string& items) { return "[" + items.substr(0, items.rfind(',')) + "]"; }

template <class... Kernels>
std::string names_of(KernelList<Kernels...>) {
  return list_of(((quoted(Kernels::kName) + ",") + ...));
}

std::string names_of_levels() {
  std::string names;
  for (const Level* level : levels_here()) names += quoted(level->name) + ",";
  return list_of(names);
}

std::string formats_of_panels() {
  std::string formats;
  for (const Level* level : levels_here()) {
    formats += quoted(level->name) + ": " + quoted(Panels::format(level->columns, level->byte_bias)) + ",";
  }
  return "{" + formats.substr(0, formats.rfind(',')) + "}";
}

}  // namespace
}  // namespace edgeformer

// Returns JSON, valid as long as the process: version of the library and of the contract, the oldest onnxruntime, names of
// the ops, SIMD levels that run here with the fastest first, the level of sessions that name none, and the format
// in which each level stores panels.
EDGEFORMER_EXPORT const char* edgeformer_kernels_describe() {
  using namespace edgeformer;
  static const std::string text =
      R"({"version": ")" EDGEFORMER_KERNELS_VERSION R"(", "contract": )" + std::to_string(kContract) +
      R"(, "onnxruntime": "1.)" + std::to_string(onnxruntime::kApiVersion) + R"(", "ops": )" + names_of(AllKernels()) +
      R"(, "levels": )" + names_of_levels() + R"(, "level": )" + quoted(best_level().name) +
      R"(, "panels": )" + formats_of_panels() + "}";
  return text.c_str();
}
