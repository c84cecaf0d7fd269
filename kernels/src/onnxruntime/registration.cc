// The entry point that onnxruntime calls, and the ops that it is given, in domain `edgeformer`.
//
// The session option "edgeformer.threads" gives kernels a team of that many threads, for sessions whose own pool has one.
// Without it they run on the session's threads.

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "binding.h"
#include "mat_mul_n_bits.h"

namespace edgeformer {
namespace {

constexpr char kDomain[] = "edgeformer";
constexpr char kThreads[] = "edgeformer.threads";
constexpr int kMostThreads = 1024;

// The ops of sessions with one number of threads.
struct Ops {
  Op<MatMulNBits> mat_mul_n_bits;
  Ort::CustomOpDomain domain{kDomain};

  explicit Ops(Team* team) : mat_mul_n_bits(team) { domain.Add(&mat_mul_n_bits); }
};

// They live as long as the process: sessions refer to them.
OrtCustomOpDomain* ops_for(int threads) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, std::unique_ptr<Ops>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Ops>& ops = all[threads];
  if (ops == nullptr) ops = std::make_unique<Ops>(threads > 0 ? &Team::shared(threads) : nullptr);
  return ops->domain;
}

int threads_of(Ort::UnownedSessionOptions options) {
  const std::string threads = options.GetConfigEntryOrDefault(kThreads, "0");
  const bool is_number = threads.size() < 6 && threads.find_first_not_of("0123456789") == threads.npos;
  const int count = is_number && !threads.empty() ? std::stoi(threads) : -1;
  if (count < 0 || count > kMostThreads) {
    throw Ort::Exception(std::string(kThreads) + " must be a number up to " + std::to_string(kMostThreads) + ", not " +
                             threads, ORT_INVALID_ARGUMENT);
  }
  return count;
}

}  // namespace
}  // namespace edgeformer

extern "C"
#if defined(_WIN32)
    __declspec(dllexport)
#else
    __attribute__((visibility("default")))
#endif
        OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace edgeformer;
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    const std::string message = "edgeformer-kernels need onnxruntime 1." + std::to_string(ORT_API_VERSION) +
                                " or newer, and this is " + base->GetVersionString();
    return base->GetApi(1)->CreateStatus(ORT_INVALID_ARGUMENT, message.c_str());
  }
  Ort::InitApi(api);
  try {
    return api->AddCustomOpDomain(options, ops_for(threads_of(Ort::UnownedSessionOptions(options))));
  } catch (const std::exception& error) {
    return Ort::Status(error).release();
  }
}
