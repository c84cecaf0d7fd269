// CachedAttention (query [, key, value], past_key, past_value, seqlens_k, total_sequence_length [, cos_cache, sin_cache]
//                  [, attention_bias] [, head_sink]) -> output, present_key, present_value
// Int8CachedAttention (the same inputs, k_scale, v_scale) -> the same outputs
// Fp16CachedAttention (the inputs of CachedAttention) -> the same outputs
// WindowedAttention, Int8WindowedAttention, Fp16WindowedAttention (the inputs of these three) -> the same outputs
// SharedCacheAttention (the inputs of CachedAttention) -> output
// Int8PerTokenAttention, Int8PerTokenWindowedAttention, Int8PerTokenSharedAttention (the inputs of CachedAttention) -> the
// outputs of CachedAttention, WindowedAttention and SharedCacheAttention
//
// Inputs, outputs and attributes are those of com.microsoft::GroupQueryAttention of the same names, float32 with int32
// lengths, and `keeps_float32`: whether no product may be rounded to bfloat16 (by default it may); a cache may be float16
// or int8. One of int8 has a scale for each channel; or (Int8PerToken) one for each key and value, a float in the four numbers
// behind its head_dim integers. Where a present is given the memory of its past, the cache is changed in place. Unlike that
// op, it takes several rows with several new tokens behind a past. A shared cache is one that an earlier layer has written:
// key and value have no tokens. A windowed cache evicts tokens as with `sliding_window_cache`: its past has room for a window at
// least, and its present the shape of the past.
#pragma once

#include <array>

#include "attention_inputs.h"
#include "binding.h"
#include "half.h"

namespace edgeformer {

// The kinds of caches.
struct FloatCache {
  static constexpr const char* kName = "CachedAttention";
  using Number = float;
  static constexpr Stored kStored = Stored::kFloat;
  static constexpr Formal kNumbers = kFloats;
  static constexpr bool kShared = false, kEvicts = false;
};
struct Int8Cache {
  static constexpr const char* kName = "Int8CachedAttention";
  using Number = std::int8_t;
  static constexpr Stored kStored = Stored::kInt8;
  static constexpr Formal kNumbers = kSignedBytes;
  static constexpr bool kShared = false, kEvicts = false;
};
struct Fp16Cache {
  static constexpr const char* kName = "Fp16CachedAttention";
  using Number = Half;
  static constexpr Stored kStored = Stored::kHalf;
  static constexpr Formal kNumbers = kHalves;
  static constexpr bool kShared = false, kEvicts = false;
};
struct WindowedCache : FloatCache {
  static constexpr const char* kName = "WindowedAttention";
  static constexpr bool kEvicts = true;
};
struct Int8WindowedCache : Int8Cache {
  static constexpr const char* kName = "Int8WindowedAttention";
  static constexpr bool kEvicts = true;
};
struct Fp16WindowedCache : Fp16Cache {
  static constexpr const char* kName = "Fp16WindowedAttention";
  static constexpr bool kEvicts = true;
};
struct SharedCache : FloatCache {
  static constexpr const char* kName = "SharedCacheAttention";
  static constexpr bool kShared = true;
};
struct Int8PerTokenCache : Int8Cache {
  static constexpr const char* kName = "Int8PerTokenAttention";
  static constexpr Stored kStored = Stored::kInt8PerToken;
};
struct Int8PerTokenWindowedCache : Int8PerTokenCache {
  static constexpr const char* kName = "Int8PerTokenWindowedAttention";
  static constexpr bool kEvicts = true;
};
struct Int8PerTokenSharedCache : Int8PerTokenCache {
  static constexpr const char* kName = "Int8PerTokenSharedAttention";
  static constexpr bool kShared = true;
};

template <class CacheKind>
class CachedAttentionOp {
  using Number = typename CacheKind::Number;
  static constexpr bool kShared = CacheKind::kShared, kEvicts = CacheKind::kEvicts, kHasChannelScales = CacheKind::kStored == Stored::kInt8;
  static constexpr Formal kNumbers = CacheKind::kNumbers;
  static constexpr std::array<Formal, 3> kAllOutputs = {kFloats, kNumbers, kNumbers};
  static constexpr std::array<Formal, 13> kAllInputs = {
      kFloats,           optional(kFloats), optional(kFloats), kNumbers,          kNumbers,         kInt32s,          kInt32s,
      optional(kFloats), optional(kFloats), optional(kFloats), optional(kFloats), optional(kFloats), optional(kFloats)};

 public:
  static constexpr const char* kName = CacheKind::kName;
  static constexpr auto kInputs = first_of<kHasChannelScales ? 13 : 11>(kAllInputs);
  static constexpr auto kOutputs = first_of<kShared ? 1 : 3>(kAllOutputs);

  explicit CachedAttentionOp(const Node& node);
  void run(Call& call, Parallel& parallel) const;

 private:
  AttentionInputs read(Call& call) const;
  static std::int64_t head_dim_of(const Sizes& past) { return past[3] - stored_width(CacheKind::kStored, 0); }
  void read_caches(const Call& call, const Sizes& past, const Sizes& present, AttentionInputs& to) const;
  const float* read_scales(const Call& call, std::size_t index, const char* name, std::int64_t head_dim) const;

  AttentionShape shape_;
  const Level& level_;
};

extern template class CachedAttentionOp<FloatCache>;
extern template class CachedAttentionOp<Int8Cache>;
extern template class CachedAttentionOp<Fp16Cache>;
extern template class CachedAttentionOp<SharedCache>;
extern template class CachedAttentionOp<WindowedCache>;
extern template class CachedAttentionOp<Int8WindowedCache>;
extern template class CachedAttentionOp<Fp16WindowedCache>;
extern template class CachedAttentionOp<Int8PerTokenCache>;
extern template class CachedAttentionOp<Int8PerTokenWindowedCache>;
extern template class CachedAttentionOp<Int8PerTokenSharedCache>;

}  // namespace edgeformer
