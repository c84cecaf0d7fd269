// SIMD levels: the same kernels, compiled for one instruction set each, and chosen when the library is loaded.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "activations.h"
#include "attention_rows.h"
#include "float_weights.h"
#include "gate.h"
#include "panels.h"
#include "recurrent.h"

namespace edgeformer {

// Rounds one row of x, of `inputs` floats.
using QuantizeRow = void (*)(const float* x, int inputs, const Activations& to, std::size_t row);

// y = the only row of the activations times the panels from `begin` to `end`, whose outputs y has.
using MultiplyRow = void (*)(const Panels&, const Activations&, int begin, int end, float* y);

// The same for rows `row` to `row + rows` of the activations, at most kMostRows, of which the first begins a tile. Rows of
// y lie `stride` floats apart.
using MultiplyRows = void (*)(const Panels&, const Activations&, int begin, int end, int row, int rows, float* y,
                              std::size_t stride);

// What becomes of a product: a bias is added, an activation is applied, and the result is stored.
struct Finish {
  Activation activation = Activation::kNone;
  bool gated = false;           // the activation is that of what y has, and the product is multiplied by it
  const float* bias = nullptr;  // of all panels' columns
};

// Rows 0 to `rows` of activations times the panels from `begin` to `end`, all of one block; y is [rows][outputs].
using MultiplyPerToken = void (*)(const Panels&, const Activations&, int begin, int end, int rows, const Finish&, float* y);

// Rows that one call of MultiplyRows takes: their results of a panel stay in the first-level cache.
inline constexpr int kMostRows = 144;

struct Level {
  const char* name;
  bool (*runs_here)();
  int columns;    // outputs of a panel
  int byte_bias;  // see Panels
  int tile_rows;  // the most rows of a tile
  int rows_in_registers;  // the same where results of several blocks stay in registers, or 0
  int unit_rows;  // the same for a unit of matrix tiles, or 0
  QuantizeRow quantize_row;
  MultiplyRow multiply_row;
  MultiplyRows multiply_rows;
  AttendOne attend_one;
  AttendMany attend_many;
  Rotate rotate;
  RoundToInt8 round_to_int8;
  RoundPerToken round_to_int8_per_token;
  RoundToHalf round_to_half;
  GateNumbers gate;
  MapNumbers map;
  AddBias add_bias;
  NormRow norm;
  AddAndNorm add_and_norm;
  AddAndLayerNorm add_and_layer_norm;
  QuantizeRow round_per_token;  // exactly as a graph of onnxruntime's ops does; activations of one block
  MultiplyPerToken multiply_per_token;
  MultiplyFloats multiply_floats;
  Convolve convolve;
  AttendState attend_state;
  SplitRow split_row;              // with a unit of matrix tiles; else null, as the next one
  MultiplySplit multiply_split;

  int lanes() const { return columns / 2; }  // floats of a vector

  // The rows of a product that fit in one tile of vectors take less time there than in the unit.
  TileForm tiles(std::size_t rows) const {
    return rows > static_cast<std::size_t>(tile_rows) && unit_rows > 0 ? TileForm{unit_rows, true} : TileForm{tile_rows, false};
  }

  // The same for weights in blocks.
  TileForm tiles_of_blocks(std::size_t rows) const {
    const TileForm form = tiles(rows);
    return !form.by_rows && rows_in_registers > 0 ? TileForm{rows_in_registers, false} : form;
  }
};

// Levels of this build, the fastest first. The last one is plain C++ and runs everywhere.
std::span<const Level* const> levels();

// Those that run here. The processor is asked once: CPUID takes microseconds in a virtual machine, whose host answers it.
std::span<const Level* const> levels_here();

// The level of this name; null if this build lacks it or the processor does.
const Level* find_level(std::string_view name);

// The environment variable that names a level for the process.
inline constexpr char kLevelVariable[] = "EDGEFORMER_KERNELS_LEVEL";

// The fastest level that runs here; or the one that the environment names, if it runs here.
const Level& best_level();

}  // namespace edgeformer
