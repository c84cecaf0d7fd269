// The clock of the benchmarks.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace edgeformer {

double median_seconds(int repeats, auto run) {
  std::vector<double> seconds;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[repeats / 2];
}

}  // namespace edgeformer
