// Holds onnxruntime/abi.h to onnxruntime's own header, any that is at least as new. It has nothing to run: what is
// wrong does not compile.

#include <onnxruntime_c_api.h>

#include <cstddef>
#include <type_traits>

#include "onnxruntime/abi.h"

namespace abi = edgeformer::onnxruntime;

// Whether a value of one type is passed as a value of the other one is: pointers are alike, and so are enumerations.
template <class A, class B>
constexpr bool is_passed_as = std::is_same_v<A, B> || (std::is_pointer_v<A> && std::is_pointer_v<B>);

template <class A, class B>
  requires(std::is_enum_v<A> && std::is_enum_v<B>)
constexpr bool is_passed_as<A, B> = sizeof(A) == sizeof(B);

template <class A, class B>
struct IsCalledAs : std::false_type {};

template <class A, class... ArgumentsA, class B, class... ArgumentsB>
  requires(sizeof...(ArgumentsA) == sizeof...(ArgumentsB))
struct IsCalledAs<A (*)(ArgumentsA...), B (*)(ArgumentsB...)>
    : std::bool_constant<is_passed_as<A, B> && (is_passed_as<ArgumentsA, ArgumentsB> && ...)> {};

template <class A, class... ArgumentsA, class B, class... ArgumentsB>
  requires(sizeof...(ArgumentsA) == sizeof...(ArgumentsB))
struct IsCalledAs<A (*)(ArgumentsA...), B (*)(ArgumentsB...) noexcept>
    : IsCalledAs<A (*)(ArgumentsA...), B (*)(ArgumentsB...)> {};

// The first function that onnxruntime 1.23 does not have.
#if ORT_API_VERSION > 23
constexpr std::size_t kEnd = offsetof(OrtApi, TensorTypeAndShape_HasShape) / sizeof(void (*)());
#else
constexpr std::size_t kEnd = sizeof(OrtApi) / sizeof(void (*)());
#endif

#define HOLD_FUNCTION(name)                                                                            \
  static_assert(abi::name.kIndex == offsetof(OrtApi, name) / sizeof(void (*)()), "place of " #name);   \
  static_assert(abi::name.kIndex < sizeof(abi::Api) / sizeof(void (*)()), "end of the table: " #name); \
  static_assert(abi::name.kIndex < kEnd, "onnxruntime 1.23 lacks " #name);                             \
  static_assert(IsCalledAs<decltype(abi::name)::Pointer, decltype(OrtApi::name)>::value, "type of " #name)

HOLD_FUNCTION(CreateStatus);
HOLD_FUNCTION(GetErrorMessage);
HOLD_FUNCTION(CreateCustomOpDomain);
HOLD_FUNCTION(CustomOpDomain_Add);
HOLD_FUNCTION(AddCustomOpDomain);
HOLD_FUNCTION(GetTensorMutableData);
HOLD_FUNCTION(GetTensorElementType);
HOLD_FUNCTION(GetDimensionsCount);
HOLD_FUNCTION(GetDimensions);
HOLD_FUNCTION(GetTensorShapeElementCount);
HOLD_FUNCTION(GetTensorTypeAndShape);
HOLD_FUNCTION(KernelInfoGetAttribute_float);
HOLD_FUNCTION(KernelInfoGetAttribute_int64);
HOLD_FUNCTION(KernelInfoGetAttribute_string);
HOLD_FUNCTION(KernelContext_GetInputCount);
HOLD_FUNCTION(KernelContext_GetInput);
HOLD_FUNCTION(KernelContext_GetOutput);
HOLD_FUNCTION(ReleaseStatus);
HOLD_FUNCTION(ReleaseTensorTypeAndShapeInfo);
HOLD_FUNCTION(KernelInfo_GetInputCount);
HOLD_FUNCTION(KernelInfo_GetInputName);
HOLD_FUNCTION(HasSessionConfigEntry);
HOLD_FUNCTION(GetSessionConfigEntry);
HOLD_FUNCTION(KernelInfoGetConstantInput_tensor);
HOLD_FUNCTION(KernelContext_ParallelFor);

#define HOLD_MEMBER(type, name)                                                                  \
  static_assert(offsetof(abi::type, name) == offsetof(Ort##type, name), "place of " #type "::" #name); \
  static_assert(IsCalledAs<decltype(abi::type::name), decltype(Ort##type::name)>::value, "type of " #type "::" #name)

HOLD_MEMBER(ApiBase, GetApi);
HOLD_MEMBER(ApiBase, GetVersionString);
static_assert(offsetof(OrtCustomOp, version) == 0 && std::is_same_v<decltype(OrtCustomOp::version), std::uint32_t>);
HOLD_MEMBER(CustomOp, CreateKernel);
HOLD_MEMBER(CustomOp, GetName);
HOLD_MEMBER(CustomOp, GetExecutionProviderType);
HOLD_MEMBER(CustomOp, GetInputType);
HOLD_MEMBER(CustomOp, GetInputTypeCount);
HOLD_MEMBER(CustomOp, GetOutputType);
HOLD_MEMBER(CustomOp, GetOutputTypeCount);
HOLD_MEMBER(CustomOp, KernelCompute);
HOLD_MEMBER(CustomOp, KernelDestroy);
HOLD_MEMBER(CustomOp, GetInputCharacteristic);
HOLD_MEMBER(CustomOp, GetOutputCharacteristic);
HOLD_MEMBER(CustomOp, GetInputMemoryType);
HOLD_MEMBER(CustomOp, GetVariadicInputMinArity);
HOLD_MEMBER(CustomOp, GetVariadicInputHomogeneity);
HOLD_MEMBER(CustomOp, GetVariadicOutputMinArity);
HOLD_MEMBER(CustomOp, GetVariadicOutputHomogeneity);
HOLD_MEMBER(CustomOp, CreateKernelV2);
HOLD_MEMBER(CustomOp, KernelComputeV2);
HOLD_MEMBER(CustomOp, InferOutputShapeFn);
HOLD_MEMBER(CustomOp, GetStartVersion);
HOLD_MEMBER(CustomOp, GetEndVersion);
HOLD_MEMBER(CustomOp, GetMayInplace);
HOLD_MEMBER(CustomOp, ReleaseMayInplace);
HOLD_MEMBER(CustomOp, GetAliasMap);
HOLD_MEMBER(CustomOp, ReleaseAliasMap);

static_assert(int(abi::ErrorCode::kFail) == ORT_FAIL);
static_assert(int(abi::ErrorCode::kInvalidArgument) == ORT_INVALID_ARGUMENT);
static_assert(int(abi::ElementType::kFloat) == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
static_assert(int(abi::ElementType::kBool) == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL);
static_assert(int(abi::ElementType::kHalf) == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16);
static_assert(int(abi::ElementType::kBfloat16) == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16);
static_assert(int(abi::ElementType::kUint8) == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8);
static_assert(int(abi::ElementType::kInt8) == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8);
static_assert(int(abi::ElementType::kInt32) == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32);
static_assert(int(abi::ElementType::kInt64) == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
static_assert(int(abi::Presence::kRequired) == INPUT_OUTPUT_REQUIRED);
static_assert(int(abi::Presence::kOptional) == INPUT_OUTPUT_OPTIONAL);
static_assert(int(abi::Presence::kVariadic) == INPUT_OUTPUT_VARIADIC);
static_assert(int(abi::ElementType::kUndefined) == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED);
static_assert(int(abi::MemoryType::kDefault) == OrtMemTypeDefault);
