// Seeded random numbers.
#pragma once

#include <cstddef>
#include <map>
#include <random>
#include <vector>

namespace edgeformer {

// The first numbers of a seed. They are drawn once: drawing those of each case anew took most of the time.
inline std::vector<float> random_floats(std::size_t count, unsigned seed, float scale = 1) {
  struct Drawn {
    std::mt19937 random;
    std::normal_distribution<float> normal;
    std::vector<float> numbers;
  };
  static std::map<unsigned, Drawn> of_seeds;
  auto& [random, normal, numbers] = of_seeds.try_emplace(seed, std::mt19937(seed)).first->second;
  while (numbers.size() < count) numbers.push_back(normal(random));
  std::vector<float> floats(numbers.begin(), numbers.begin() + count);
  for (float& each : floats) each *= scale;
  return floats;
}

}  // namespace edgeformer
