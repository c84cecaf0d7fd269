// Seeded random weights that own what a Weights refers to.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "random_floats.h"
#include "weights.h"

namespace edgeformer {

struct RandomWeights {
  Weights view;
  std::vector<std::uint8_t> integers, zero_points;
  std::vector<float> scales;

  // bits: 4 or 8; or 6, which are the highest of 8.
  RandomWeights(int outputs, int inputs, int bits, int block, bool own_zero_points, unsigned seed) {
    const int used = bits;
    bits = used == 4 ? 4 : 8;
    view = {outputs, inputs, bits, block, nullptr, nullptr, nullptr};
    std::mt19937 random(seed);
    const std::size_t blocks = view.blocks(), rows = outputs;
    integers.resize(rows * blocks * block * bits / 8);
    for (auto& byte : integers) byte = used == 6 ? random() & 0xfc : random();
    zero_points.resize(rows * ((blocks * bits + 7) / 8));
    for (auto& byte : zero_points) byte = random();
    scales.resize(rows * blocks);
    // Scales of ten orders of magnitude between columns, and of three within one.
    for (std::size_t i = 0; i < scales.size(); ++i) {
      const double column = static_cast<double>(i / blocks % 11) - 8, within = random() / 4294967296.0 * 3;
      scales[i] = static_cast<float>(std::pow(10.0, column - within)) * (random() % 8 ? 1.0f : -1.0f);
    }
    view.integers = integers.data();
    view.scales = scales.data();
    if (own_zero_points) view.zero_points = zero_points.data();
  }
};

inline std::vector<float> random_activations(std::size_t size, unsigned seed) { return random_floats(size, seed); }

}  // namespace edgeformer
