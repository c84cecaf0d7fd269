// Binds the kernels to onnxruntime as custom ops of domain `edgeformer`. This is the only file that knows its types.
//
//   MatMulNBits (A float [..., K], B uint8, scales float [, zero_points uint8]) -> Y float [..., N]
//     attributes K, N, bits, block_size; inputs and weights as in com.microsoft::MatMulNBits; all but A are constants.
//
// The session option "edgeformer.threads" gives products a team of that many threads, for sessions whose own pool has one.
// Without it they run on the session's threads.

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "quantized_linear.h"
#include "team.h"

namespace edgeformer {
namespace {

constexpr char kDomain[] = "edgeformer";
constexpr char kThreads[] = "edgeformer.threads";
constexpr int kMostThreads = 1024;

// The threads of a session, during one call of a kernel.
class SessionThreads final : public Parallel {
 public:
  explicit SessionThreads(OrtKernelContext* context) : context_(context) {}

  // onnxruntime does not tell; the number only decides how finely work is cut.
  int threads() const override { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

  void run(std::size_t chunks, Task task) override {
    const auto call = [](void* object, std::size_t chunk) { (*static_cast<const Task*>(object))(chunk); };
    Ort::KernelContext(context_).ParallelFor(call, chunks, 0, &task);
  }

 private:
  OrtKernelContext* context_;
};

[[noreturn]] void refuse(const std::string& reason) {
  throw Ort::Exception("edgeformer::MatMulNBits: " + reason, ORT_INVALID_ARGUMENT);
}

// A constant input of a node, which must have `size` elements.
template <class T>
const T* constant(const Ort::ConstKernelInfo& info, std::size_t index, const char* name, std::size_t size) {
  int is_constant = 0;
  const Ort::ConstValue value = info.GetTensorConstantInput(index, &is_constant);
  if (!is_constant) refuse(std::string(name) + " must be a constant");
  const std::size_t found = value.GetTensorTypeAndShapeInfo().GetElementCount();
  if (found != size) {
    refuse(std::string(name) + " has " + std::to_string(found) + " elements; these attributes want " +
           std::to_string(size));
  }
  return value.GetTensorData<T>();
}

int positive(const Ort::ConstKernelInfo& info, const char* attribute) {
  const auto value = info.GetAttribute<std::int64_t>(attribute);
  if (value < 1 || value > 1 << 28) refuse(std::string(attribute) + " is " + std::to_string(value));
  return static_cast<int>(value);
}

Weights weights_of(const Ort::ConstKernelInfo& info) {
  Weights weights{positive(info, "N"), positive(info, "K"), positive(info, "bits"), positive(info, "block_size"),
                  nullptr, nullptr, nullptr};
  const std::size_t blocks = static_cast<std::size_t>(weights.outputs) * weights.blocks();
  weights.integers = constant<std::uint8_t>(info, 1, "B", blocks * weights.block * weights.bits / 8);
  weights.scales = constant<float>(info, 2, "scales", blocks);
  if (info.GetInputCount() > 3) {
    const std::size_t row_bytes = (static_cast<std::size_t>(weights.blocks()) * weights.bits + 7) / 8;
    weights.zero_points = constant<std::uint8_t>(info, 3, "zero_points", weights.outputs * row_bytes);
  }
  const std::string reason = why_unsupported(weights);
  if (!reason.empty()) refuse(reason);
  return weights;
}

class MatMulNBitsKernel {
 public:
  MatMulNBitsKernel(const OrtKernelInfo* info, Team* team)
      : linear_(weights_of(Ort::ConstKernelInfo(info))), team_(team) {}

  OrtStatusPtr ComputeV2(OrtKernelContext* of_call) {
    try {
      Ort::KernelContext context(of_call);
      const Ort::ConstValue x = context.GetInput(0);
      std::vector<std::int64_t> shape = x.GetTensorTypeAndShapeInfo().GetShape();
      if (shape.empty() || shape.back() != linear_.inputs()) {
        refuse("the last dimension of A must be K, " + std::to_string(linear_.inputs()));
      }
      const std::size_t rows = x.GetTensorTypeAndShapeInfo().GetElementCount() / linear_.inputs();
      shape.back() = linear_.outputs();
      float* y = context.GetOutput(0, shape).GetTensorMutableData<float>();
      SessionThreads of_session(of_call);
      linear_.run(x.GetTensorData<float>(), rows, y, team_ ? static_cast<Parallel&>(*team_) : of_session);
      return nullptr;
    } catch (const std::exception& error) {
      return Ort::Status(error).release();
    }
  }

 private:
  QuantizedLinear linear_;
  Team* team_;  // null: the session's threads
};

struct MatMulNBitsOp : Ort::CustomOpBase<MatMulNBitsOp, MatMulNBitsKernel, true> {
  Team* team;

  explicit MatMulNBitsOp(Team* of_sessions) : team(of_sessions) {}

  OrtStatusPtr CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
    try {
      *kernel = new MatMulNBitsKernel(info, team);
      return nullptr;
    } catch (const std::exception& error) {
      return Ort::Status(error).release();
    }
  }

  const char* GetName() const { return "MatMulNBits"; }
  std::size_t GetInputTypeCount() const { return 4; }
  ONNXTensorElementDataType GetInputType(std::size_t index) const {
    return index % 2 ? ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t index) const {
    return index == 3 ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  }
  std::size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
};

// The ops of sessions with one number of threads.
struct Ops {
  MatMulNBitsOp mat_mul_n_bits;
  Ort::CustomOpDomain domain{kDomain};

  explicit Ops(int threads) : mat_mul_n_bits(threads > 0 ? &Team::shared(threads) : nullptr) {
    domain.Add(&mat_mul_n_bits);
  }
};

// They live as long as the process: sessions refer to them.
OrtCustomOpDomain* ops_for(int threads) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, std::unique_ptr<Ops>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Ops>& ops = all[threads];
  if (ops == nullptr) ops = std::make_unique<Ops>(threads);
  return ops->domain;
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
    const std::string threads = Ort::UnownedSessionOptions(options).GetConfigEntryOrDefault(kThreads, "0");
    const int count = threads.find_first_not_of("0123456789") == threads.npos ? std::stoi(threads) : -1;
    if (count < 0 || count > kMostThreads) {
      throw Ort::Exception(std::string(kThreads) + " must be a number up to " + std::to_string(kMostThreads) + ", not " +
                               threads, ORT_INVALID_ARGUMENT);
    }
    return api->AddCustomOpDomain(options, ops_for(count));
  } catch (const std::exception& error) {
    return Ort::Status(error).release();
  }
}
