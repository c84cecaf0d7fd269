// Every chunk is run once, whoever runs it: with members asleep, awake, with several callers, and beside other programs.
#include "team.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"

using namespace edgeformer;

namespace {

void check_once(Team& team, std::size_t chunks) {
  std::vector<int> runs(chunks, 0);  // not atomic: a chunk that two threads run is a race that TSan reports
  team.run(chunks, Task([&](std::size_t chunk) { ++runs[chunk]; }));
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) CHECK(runs[chunk] == 1, "chunk %zu ran %d times", chunk, runs[chunk]);
}

// Threads that compute without end want every processor, so that members are taken from theirs, move, and sleep at once.
void check_beside_others() {
  std::atomic<bool> over{false};
  std::vector<std::thread> others;
  for (unsigned other = 0; other < std::thread::hardware_concurrency(); ++other) {
    others.emplace_back([&] { while (!over.load(std::memory_order_relaxed)) continue; });
  }
  Team team(3);
  const auto since = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - since < std::chrono::milliseconds(300)) check_once(team, 500);
  over = true;
  for (std::thread& other : others) other.join();
  check_once(team, 500);
}

}  // namespace

int main() {
  for (int threads : {1, 2, 3, 5}) {
    Team team(threads);
    for (std::size_t chunks : {0, 1, 2, 7, 1000}) {
      for (int repeat = 0; repeat < 200; ++repeat) check_once(team, chunks);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // members fall asleep
    check_once(team, 100);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller) {
      callers.emplace_back([&] {
        for (int repeat = 0; repeat < 300; ++repeat) check_once(team, 50);
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  check_beside_others();
  CHECK(&Team::shared(2) == &Team::shared(2) && &Team::shared(2) != &Team::shared(1), "teams are shared by size");
}
