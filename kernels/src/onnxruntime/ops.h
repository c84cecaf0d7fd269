// The ops of the library, in one list: what is registered, and what the library says that it has.
#pragma once

#include "add_norm.h"
#include "cached_attention.h"
#include "fused_nodes.h"
#include "light_ops.h"
#include "mat_mul.h"
#include "mat_mul_n_bits.h"
#include "packer.h"
#include "per_token.h"
#include "recurrent_ops.h"
#include "self_attention.h"
#include "source_attention.h"
#include "split_norm.h"

namespace edgeformer {

template <class...>
struct Joined;
template <class... Kernels>
struct Joined<KernelList<Kernels...>> {
  using List = KernelList<Kernels...>;
};
template <class... First, class... Second, class... Others>
struct Joined<KernelList<First...>, KernelList<Second...>, Others...> : Joined<KernelList<First..., Second...>, Others...> {};

// Products in blocks, and the ops that store their weights.
template <class... Kernels>
using PackedProducts = KernelList<Kernels..., Packer<Kernels>...>;

// Feed-forwards with this activation: with and without a gate, with and without biases.
template <Activation kActivation>
using FeedForwards = KernelList<PerTokenFeedForwardOp<false, kActivation, false>, PerTokenFeedForwardOp<false, kActivation, true>,
                                PerTokenFeedForwardOp<true, kActivation, false>, PerTokenFeedForwardOp<true, kActivation, true>>;

// Products with weights of this type.
template <Numbers kType>
using FloatProducts = KernelList<MatMulOp<kType, false>, MatMulOp<kType, true>, GatedMatMulOp<kType, false>, GatedMatMulOp<kType, true>>;

// What computes, beside FusedNodes.
using Kernels =
    Joined<KernelList<AddRMSNorm, AddLayerNormOp<false>, AddLayerNormOp<true>, SplitRMSNorm, MaskedCausalConv,
                      MaskedLinearAttention>,
           KernelList<CachedAttentionOp<FloatCache>, CachedAttentionOp<Int8Cache>, CachedAttentionOp<Fp16Cache>,
                      CachedAttentionOp<SharedCache>, CachedAttentionOp<WindowedCache>, CachedAttentionOp<Int8WindowedCache>,
                      CachedAttentionOp<Fp16WindowedCache>, CachedAttentionOp<Int8PerTokenCache>,
                      CachedAttentionOp<Int8PerTokenWindowedCache>, CachedAttentionOp<Int8PerTokenSharedCache>,
                      SelfAttentionOp<false>, SelfAttentionOp<true>, SourceAttention>,
           PackedProducts<MatMulNBits, MatMulNBitsGeGLU, MatMulNBitsSwiGLU, MatMulNBitsBias, MatMulNBitsBiasGelu,
                          MatMulNBitsFeedForward>,
           FloatProducts<Numbers::kFloat>, FloatProducts<Numbers::kBfloat16>,
           KernelList<PerTokenMatMul<false>, PerTokenMatMul<true>>,
           FeedForwards<Activation::kRelu>, FeedForwards<Activation::kSilu>, FeedForwards<Activation::kGelu>,
           FeedForwards<Activation::kGeluTanh>>::List;

// What FusedNodes runs, and what is registered.
using FusedKernels = Joined<Kernels, LightOps>::List;
using AllKernels = Joined<Kernels, KernelList<FusedNodes>>::List;

}  // namespace edgeformer
