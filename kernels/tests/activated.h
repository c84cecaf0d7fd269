// Activations in float64: what every level is held to.
#pragma once

#include <cmath>

#include "gate.h"

namespace edgeformer {

inline constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu, Activation::kSilu, Activation::kGelu,
                                              Activation::kGeluTanh};

inline double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x > 0 ? x : 0;
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kGelu: return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
    case Activation::kGeluTanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  return NAN;
}

}  // namespace edgeformer
