// Activations behind products: of a gate, y = activation(gate) · up, or of a product and a bias.
#pragma once

#include <cstddef>

namespace edgeformer {

enum class Activation { kNone, kRelu, kSilu, kGelu, kGeluTanh };

constexpr const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::kNone: return "";
    case Activation::kRelu: return "Relu";
    case Activation::kSilu: return "Silu";
    case Activation::kGelu: return "Gelu";
    case Activation::kGeluTanh: return "GeluTanh";
  }
  return "";
}

// Functions of single numbers: 1 / (1 + e^-x), and log(1 + e^x).
enum class Map { kSigmoid, kSoftplus };

using MapNumbers = void (*)(Map, const float* x, int count, float* y);

// Outputs of a gated product are a multiple of it: at every level these are whole vectors, and whole panels.
inline constexpr int kGateColumns = 32;

// Of `count` numbers, in whole vectors of the level.
using GateNumbers = void (*)(Activation, const float* gate, const float* up, int count, float* y);

// y = activation(y + bias), of rows that lie `stride` floats apart. bias: of `columns` numbers, and whole vectors to read.
using AddBias = void (*)(Activation, const float* bias, int rows, int columns, float* y, std::size_t stride);

// Norms a row by its root mean square: y = x / rms(x) · weight, with rms(x) = sqrt(mean of squares + epsilon).
using NormRow = void (*)(const float* x, const float* weight, int size, float epsilon, float* y);

// Adds a row to another, and norms the sum by its root mean square: sum = x + skip, y = sum / rms(sum) · weight.
using AddAndNorm = void (*)(const float* x, const float* skip, const float* weight, int size, float epsilon, float* sum,
                            float* y);

// The same by the mean and the standard deviation: y = (sum − mean) / sqrt(variance + epsilon) · weight + bias. bias may be
// null, and so may sum, which is then not kept.
using AddAndLayerNorm = void (*)(const float* x, const float* skip, const float* weight, const float* bias, int size,
                                 float epsilon, float* sum, float* y);

}  // namespace edgeformer
