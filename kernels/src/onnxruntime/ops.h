// The ops of the library, in one list: what is registered, and what the library says that it has.
#pragma once

#include "add_rms_norm.h"
#include "cached_attention.h"
#include "mat_mul_n_bits.h"
#include "packer.h"

namespace edgeformer {

template <class... Kernels>
struct KernelList {};

using AllKernels = KernelList<AddRMSNorm, CachedAttention, MatMulNBits, MatMulNBitsGeGLU, MatMulNBitsSwiGLU,
                              Packer<MatMulNBits>, Packer<MatMulNBitsGeGLU>, Packer<MatMulNBitsSwiGLU>>;

}  // namespace edgeformer
