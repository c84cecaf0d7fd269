// What this library needs of onnxruntime's C ABI, declared here so that a build needs no headers of onnxruntime.
//
// onnxruntime hands out a table of functions, OrtApi, which only ever grows at its end, so a function is its place in
// the table and its type. Names are those of onnxruntime_c_api.h; tests/test_abi.cc holds all of this to that header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace edgeformer::onnxruntime {

// Of onnxruntime 1.23, the oldest that loads quantized bundles.
inline constexpr std::uint32_t kApiVersion = 23;

// Objects that only onnxruntime looks into.
struct CustomOpDomain;
struct KernelContext;
struct KernelInfo;
struct SessionOptions;
struct Status;
struct TensorTypeAndShapeInfo;
struct Value;

struct Api {
  void (*functions[275])();
};

struct ApiBase {
  const Api* (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

enum class ErrorCode : int { kFail = 1, kInvalidArgument = 2 };
enum class ElementType : int { kUndefined = 0, kFloat = 1, kUint8 = 2, kInt8 = 3, kInt32 = 6, kInt64 = 7, kBool = 9, kHalf = 10, kBfloat16 = 16 };
enum class Presence : int { kRequired = 0, kOptional = 1, kVariadic = 2 };
enum class MemoryType : int { kDefault = 0 };

// The table of the onnxruntime that has registered the library.
inline const Api* registered_api = nullptr;

template <std::size_t kPlace, class Type>
class Function;

template <std::size_t kPlace, class Result, class... Arguments>
class Function<kPlace, Result(Arguments...)> {
 public:
  using Pointer = Result (*)(Arguments...);
  static constexpr std::size_t kIndex = kPlace;

  static Pointer in(const Api& api) { return reinterpret_cast<Pointer>(api.functions[kPlace]); }
  Result operator()(Arguments... arguments) const { return in(*registered_api)(arguments...); }
};

inline constexpr Function<0, Status*(ErrorCode code, const char* message)> CreateStatus;
inline constexpr Function<2, const char*(const Status* status)> GetErrorMessage;
inline constexpr Function<26, Status*(const char* name, CustomOpDomain** domain)> CreateCustomOpDomain;
inline constexpr Function<27, Status*(CustomOpDomain* domain, const struct CustomOp* op)> CustomOpDomain_Add;
inline constexpr Function<28, Status*(SessionOptions* options, CustomOpDomain* domain)> AddCustomOpDomain;
inline constexpr Function<51, Status*(Value* value, void** numbers)> GetTensorMutableData;
inline constexpr Function<60, Status*(const TensorTypeAndShapeInfo* info, ElementType* type)> GetTensorElementType;
inline constexpr Function<61, Status*(const TensorTypeAndShapeInfo* info, std::size_t* count)> GetDimensionsCount;
inline constexpr Function<62, Status*(const TensorTypeAndShapeInfo* info, std::int64_t* sizes, std::size_t count)>
    GetDimensions;
inline constexpr Function<64, Status*(const TensorTypeAndShapeInfo* info, std::size_t* count)>
    GetTensorShapeElementCount;
inline constexpr Function<65, Status*(const Value* value, TensorTypeAndShapeInfo** info)> GetTensorTypeAndShape;
inline constexpr Function<85, Status*(const KernelInfo* info, const char* name, float* value)>
    KernelInfoGetAttribute_float;
inline constexpr Function<86, Status*(const KernelInfo* info, const char* name, std::int64_t* value)>
    KernelInfoGetAttribute_int64;
inline constexpr Function<87, Status*(const KernelInfo* info, const char* name, char* text, std::size_t* size)>
    KernelInfoGetAttribute_string;
inline constexpr Function<88, Status*(const KernelContext* context, std::size_t* count)> KernelContext_GetInputCount;
inline constexpr Function<90, Status*(const KernelContext* context, std::size_t index, const Value** value)>
    KernelContext_GetInput;
inline constexpr Function<91, Status*(KernelContext* context, std::size_t index, const std::int64_t* sizes,
                                      std::size_t count, Value** value)>
    KernelContext_GetOutput;
inline constexpr Function<93, void(Status* status)> ReleaseStatus;
inline constexpr Function<99, void(TensorTypeAndShapeInfo* info)> ReleaseTensorTypeAndShapeInfo;
inline constexpr Function<230, Status*(const KernelInfo* info, std::size_t* count)> KernelInfo_GetInputCount;
inline constexpr Function<232, Status*(const KernelInfo* info, std::size_t index, char* name, std::size_t* size)>
    KernelInfo_GetInputName;
inline constexpr Function<237, Status*(const SessionOptions* options, const char* key, int* has)>
    HasSessionConfigEntry;
inline constexpr Function<238, Status*(const SessionOptions* options, const char* key, char* value, std::size_t* size)>
    GetSessionConfigEntry;
inline constexpr Function<249, Status*(const KernelInfo* info, std::size_t index, int* is_constant, const Value** value)>
    KernelInfoGetConstantInput_tensor;
inline constexpr Function<274, Status*(const KernelContext* context, void (*task)(void* of, std::size_t chunk),
                                       std::size_t chunks, std::size_t batches, void* of)>
    KernelContext_ParallelFor;

// An op, which onnxruntime calls through these. Those that are null are not called, by the version of the op.
struct CustomOp {
  std::uint32_t version;
  void* (*CreateKernel)(const CustomOp* op, const Api* api, const KernelInfo* info);
  const char* (*GetName)(const CustomOp* op);
  const char* (*GetExecutionProviderType)(const CustomOp* op);
  ElementType (*GetInputType)(const CustomOp* op, std::size_t index);
  std::size_t (*GetInputTypeCount)(const CustomOp* op);
  ElementType (*GetOutputType)(const CustomOp* op, std::size_t index);
  std::size_t (*GetOutputTypeCount)(const CustomOp* op);
  void (*KernelCompute)(void* kernel, KernelContext* context);
  void (*KernelDestroy)(void* kernel);
  Presence (*GetInputCharacteristic)(const CustomOp* op, std::size_t index);
  Presence (*GetOutputCharacteristic)(const CustomOp* op, std::size_t index);
  MemoryType (*GetInputMemoryType)(const CustomOp* op, std::size_t index);
  int (*GetVariadicInputMinArity)(const CustomOp* op);
  int (*GetVariadicInputHomogeneity)(const CustomOp* op);
  int (*GetVariadicOutputMinArity)(const CustomOp* op);
  int (*GetVariadicOutputHomogeneity)(const CustomOp* op);
  Status* (*CreateKernelV2)(const CustomOp* op, const Api* api, const KernelInfo* info, void** kernel);
  Status* (*KernelComputeV2)(void* kernel, KernelContext* context);
  Status* (*InferOutputShapeFn)(const CustomOp* op, void* context);
  int (*GetStartVersion)(const CustomOp* op);
  int (*GetEndVersion)(const CustomOp* op);
  std::size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  std::size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};

// Throws what a status says, unless it says that all is well.
inline void check(Status* status) {
  if (status == nullptr) return;
  const std::string message = GetErrorMessage(status);
  ReleaseStatus(status);
  throw std::runtime_error(message);
}

// Runs a function; what it throws becomes a status.
template <class F>
Status* status_of(F run) {
  try {
    run();
    return nullptr;
  } catch (const std::exception& error) {
    return CreateStatus(ErrorCode::kFail, error.what());
  }
}

// The text that read(char*, size_t*) writes: first it is asked for its size, which counts the closing zero.
template <class F>
std::string text_of(F read) {
  std::size_t size = 0;
  check(read(nullptr, &size));
  std::string text(size, '\0');
  check(read(text.data(), &size));
  text.resize(size - 1);
  return text;
}

}  // namespace edgeformer::onnxruntime
