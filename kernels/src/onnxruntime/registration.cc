// The entry point that onnxruntime calls, and the ops that it is given, in domain `edgeformer`.
//
// Options of a session:
//   "edgeformer.threads"  kernels have a team of that many threads, for sessions whose own pool has one. Without it they
//                         run on the session's threads.
//   "edgeformer.level"    the SIMD level of its kernels (level.h). Without it, the process's: the fastest, or the one
//                         that EDGEFORMER_KERNELS_LEVEL names.

#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "binding.h"
#include "export.h"
#include "ops.h"

namespace edgeformer {
namespace {

constexpr char kDomain[] = "edgeformer";
constexpr char kThreads[] = "edgeformer.threads";
constexpr char kLevel[] = "edgeformer.level";
constexpr int kMostThreads = 1024;

template <class List>
struct OpsOf;

// The ops of sessions with the same settings.
template <class... Kernels>
struct OpsOf<KernelList<Kernels...>> {
  std::tuple<Op<Kernels>...> ops;
  onnxruntime::CustomOpDomain* domain = nullptr;

  explicit OpsOf(const Settings& settings) : ops(Op<Kernels>(settings)...) {
    onnxruntime::check(onnxruntime::CreateCustomOpDomain(kDomain, &domain));
    std::apply([this](auto&... op) { (onnxruntime::check(onnxruntime::CustomOpDomain_Add(domain, &op)), ...); }, ops);
  }
};

// They live as long as the process: sessions refer to them.
onnxruntime::CustomOpDomain* ops_for(int threads, const Level& level) {
  using Ops = OpsOf<AllKernels>;
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<int, const Level*>, std::unique_ptr<Ops>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Ops>& ops = all[{threads, &level}];
  if (ops == nullptr) ops = std::make_unique<Ops>(Settings{threads > 0 ? &Team::shared(threads) : nullptr, level});
  return ops->domain;
}

[[noreturn]] void refuse(const std::string& name, const std::string& wanted, const std::string& value) {
  throw std::runtime_error(name + " must be " + wanted + ", not " + value);
}

bool has_entry(const onnxruntime::SessionOptions* options, const char* key) {
  int has = 0;
  onnxruntime::check(onnxruntime::HasSessionConfigEntry(options, key, &has));
  return has != 0;
}

std::string entry(const onnxruntime::SessionOptions* options, const char* key) {
  return onnxruntime::text_of(
      [&](char* to, std::size_t* size) { return onnxruntime::GetSessionConfigEntry(options, key, to, size); });
}

int threads_of(const onnxruntime::SessionOptions* options) {
  const std::string threads = has_entry(options, kThreads) ? entry(options, kThreads) : "0";
  const bool is_number = threads.size() < 6 && threads.find_first_not_of("0123456789") == threads.npos;
  const int count = is_number && !threads.empty() ? std::stoi(threads) : -1;
  if (count < 0 || count > kMostThreads) refuse(kThreads, "a number up to " + std::to_string(kMostThreads), threads);
  return count;
}

const Level& level_of(const onnxruntime::SessionOptions* options) {
  const char* variable = std::getenv(kLevelVariable);
  const bool by_option = has_entry(options, kLevel);
  if (!by_option && variable == nullptr) return best_level();
  const std::string name = by_option ? entry(options, kLevel) : variable;
  if (const Level* level = find_level(name)) return *level;
  std::string names;
  for (const Level* level : levels_here()) names += (names.empty() ? "" : ", ") + std::string(level->name);
  refuse(by_option ? kLevel : kLevelVariable, "one of " + names, name);
}

}  // namespace
}  // namespace edgeformer

EDGEFORMER_EXPORT edgeformer::onnxruntime::Status* RegisterCustomOps(edgeformer::onnxruntime::SessionOptions* options,
                                                                     const edgeformer::onnxruntime::ApiBase* base) {
  using namespace edgeformer;
  const onnxruntime::Api* api = base->GetApi(onnxruntime::kApiVersion);
  if (api == nullptr) {
    const std::string message = "edgeformer-kernels need onnxruntime 1." + std::to_string(onnxruntime::kApiVersion) +
                                " or newer, and this is " + base->GetVersionString();
    // The first version of the table has this function, too.
    const auto create_status = onnxruntime::CreateStatus.in(*base->GetApi(1));
    return create_status(onnxruntime::ErrorCode::kInvalidArgument, message.c_str());
  }
  onnxruntime::registered_api = api;
  return onnxruntime::status_of([&] {
    onnxruntime::check(onnxruntime::AddCustomOpDomain(options, ops_for(threads_of(options), level_of(options))));
  });
}
