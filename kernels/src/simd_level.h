// All kernels of a SIMD level V.
#pragma once

#include "level.h"
#include "simd_floats.h"
#include "simd_gate.h"
#include "simd_gemm.h"
#include "simd_kernels.h"
#include "simd_per_token.h"
#include "simd_prompts.h"
#include "simd_recurrent.h"
#include "simd_steps.h"
#include "simd_stored.h"
#include "tile_products.h"

namespace edgeformer {

template <class V>
constexpr int unit_rows() {
  if constexpr (HasTiles<V>) {
    return V::Tiles::kRows;
  } else {
    return 0;
  }
}

template <class V>
constexpr Level level_of(const char* name, bool (*runs_here)()) {
  Level level{name,           runs_here,       2 * V::kLanes,    V::kByteBias,   V::kTileRows, rows_in_registers<V>(), unit_rows<V>(), quantize_row<V, false>,
              multiply_row<V>, multiply_rows<V>, attend_one<V>, attend_many<V>, rotate<V>, round_to_int8<V>, round_to_int8_per_token<V>,
              round_to_half<V>, gate_numbers<V>, map_numbers<V>, add_bias<V>, norm<V>, add_and_norm<V>, add_and_layer_norm<V>, quantize_row<V, true>,
              multiply_per_token<V>, multiply_floats<V>, convolve<V>, attend_state<V>, nullptr, nullptr};
  if constexpr (HasTiles<V>) {
    level.split_row = split_row<V>;
    level.multiply_split = multiply_split<V>;
  }
  return level;
}

}  // namespace edgeformer
