// The entry point that onnxruntime calls, and the ops that it is given, in domain `edgeformer`.
//
// Options of a session:
//   "edgeformer.threads"  kernels have a team of that many threads, for sessions whose own pool has one. Without it they
//                         run on the session's threads.
//   "edgeformer.level"    the SIMD level of its kernels (level.h). Without it, the process's: the fastest, or the one
//                         that EDGEFORMER_KERNELS_LEVEL names.

#include <cstddef>
#include <cstdlib>
#include <cstring>
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
  Ort::CustomOpDomain domain{kDomain};

  explicit OpsOf(const Settings& settings) : ops(Op<Kernels>(settings)...) {
    std::apply([this](auto&... op) { (domain.Add(&op), ...); }, ops);
  }
};

// They live as long as the process: sessions refer to them.
OrtCustomOpDomain* ops_for(int threads, const Level& level) {
  using Ops = OpsOf<AllKernels>;
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<int, const Level*>, std::unique_ptr<Ops>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Ops>& ops = all[{threads, &level}];
  if (ops == nullptr) ops = std::make_unique<Ops>(Settings{threads > 0 ? &Team::shared(threads) : nullptr, level});
  return ops->domain;
}

[[noreturn]] void refuse(const std::string& name, const std::string& wanted, const std::string& value) {
  throw Ort::Exception(name + " must be " + wanted + ", not " + value, ORT_INVALID_ARGUMENT);
}

int threads_of(Ort::UnownedSessionOptions options) {
  const std::string threads = options.GetConfigEntryOrDefault(kThreads, "0");
  const bool is_number = threads.size() < 6 && threads.find_first_not_of("0123456789") == threads.npos;
  const int count = is_number && !threads.empty() ? std::stoi(threads) : -1;
  if (count < 0 || count > kMostThreads) refuse(kThreads, "a number up to " + std::to_string(kMostThreads), threads);
  return count;
}

const Level& level_of(Ort::UnownedSessionOptions options) {
  const char* variable = std::getenv(kLevelVariable);
  const bool by_option = options.HasConfigEntry(kLevel);
  if (!by_option && variable == nullptr) return best_level();
  const std::string name = by_option ? options.GetConfigEntry(kLevel) : variable;
  if (const Level* level = find_level(name)) return *level;
  std::string names;
  for (const Level* level : levels()) {
    if (level->runs_here()) names += (names.empty() ? "" : ", ") + std::string(level->name);
  }
  refuse(by_option ? kLevel : kLevelVariable, "one of " + names, name);
}

// The functions of the oldest onnxruntime that is supported. Newer ones are null, so that a call of one fails in every
// onnxruntime, and in our tests, instead of in old ones only.
const OrtApi* oldest_api(const OrtApi& api) {
  static const OrtApi oldest = [&api] {
    constexpr std::size_t kFirstNewer = offsetof(OrtApi, TensorTypeAndShape_HasShape);  // of onnxruntime 1.24
    OrtApi of_it{};
    std::memcpy(static_cast<void*>(&of_it), &api, kFirstNewer);
    return of_it;
  }();
  return &oldest;
}

}  // namespace
}  // namespace edgeformer

EDGEFORMER_EXPORT OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace edgeformer;
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    const std::string message = "edgeformer-kernels need onnxruntime 1." + std::to_string(ORT_API_VERSION) +
                                " or newer, and this is " + base->GetVersionString();
    return base->GetApi(1)->CreateStatus(ORT_INVALID_ARGUMENT, message.c_str());
  }
  Ort::InitApi(oldest_api(*api));
  try {
    const Ort::UnownedSessionOptions of_session(options);
    return api->AddCustomOpDomain(options, ops_for(threads_of(of_session), level_of(of_session)));
  } catch (const std::exception& error) {
    return Ort::Status(error).release();
  }
}
