// A cache that evicts tokens against one that keeps all: texts in prompts, steps and chunks, on every level that runs here.
// test_attention.cc compares the latter with float64.
#include <cstdio>
#include <cstring>
#include <numeric>

#include "attention_cases.h"
#include "team.h"
#include "tested_levels.h"

using namespace edgeformer;

namespace {

constexpr std::size_t kSizes[] = {sizeof(float), sizeof(Half), 1, 1};  // of Stored

struct Text {
  AttentionShape shape;
  int capacity;             // of the cache that evicts
  std::vector<int> pieces;  // new tokens of each call
  Stored stored = Stored::kFloat;
  bool bias = false, in_place = true;
};

// A cache of keys and values, as the bytes of its numbers.
struct Store {
  std::size_t capacity;
  std::vector<char> bytes[2];

  Store(const Text& text, std::size_t rows, std::size_t capacity) : capacity(capacity) {
    for (auto& each : bytes) each.assign(rows * text.shape.kv_heads * capacity * of_token(text), char(0x7f));
  }
  static std::size_t of_token(const Text& text) { return stored_width(text.stored, text.shape.head_dim) * kSizes[int(text.stored)]; }
  const char* at(const Text& text, int kind, std::size_t head, int token) const {
    return bytes[kind].data() + (head * capacity + token) * of_token(text);
  }
};

constexpr int kRows = 2;

// Attention of the next tokens: returns outputs. `room`: what the second row has less of a prompt, and so of the past.
std::vector<float> call(const Text& text, bool evicts, int before, int tokens, int room, Store& store, const Level& level,
                        Parallel& parallel) {
  AttentionShape shape = text.shape;
  shape.evicts = evicts;
  const std::size_t d = shape.head_dim, all = std::size_t(kRows) * tokens;
  const std::vector<float> queries = random_floats(all * shape.query_heads * d, 100 + before),
                           keys = random_floats(all * shape.kv_heads * d, 200 + before),
                           values = random_floats(all * shape.kv_heads * d, 300 + before);
  std::vector<float> cosines, sines, output(all * shape.query_heads * d, NAN);
  const std::vector<float> scales(shape.kv_heads * d, 0.02f);
  const int total = before + tokens;
  for (int i = 0; i < total * shape.rotary_dim / 2; ++i) {
    cosines.push_back(std::cos(0.37f * i));
    sines.push_back(std::sin(0.37f * i));
  }
  const std::vector<float> bias = random_floats(std::size_t(tokens) * total, 400 + before);
  const std::int32_t last_positions[kRows] = {total - 1, total - 1 - room};
  Store copy = store;
  Store& past = text.in_place ? store : copy;
  AttentionInputs in{};
  in.rows = kRows;
  in.new_tokens = tokens;
  in.queries = queries.data();
  in.keys = keys.data();
  in.values = values.data();
  in.query_stride = shape.query_heads * d;
  in.kv_stride = shape.kv_heads * d;
  in.cosines = cosines.data();
  in.sines = sines.data();
  in.last_positions = last_positions;
  in.is_prompt = before == 0;
  in.bias = text.bias ? bias.data() : nullptr;
  in.bias_token_stride = total;
  for (int kind : {0, 1}) {
    (kind == 0 ? in.keys_cache : in.values_cache) = {past.bytes[kind].data(), store.capacity, store.bytes[kind].data(),
                                                     store.capacity, text.stored, scales.data()};
  }
  in.output = output.data();
  attend(shape, in, level, parallel);
  return output;
}

double check(const char* name, const Text& text, const Level& best, int wrong_window = 0) {
  const Level& level = level_for(text.shape.head_dim, best);
  Serial serial;
  static Team team(3);
  const int length = std::accumulate(text.pieces.begin(), text.pieces.end(), 0);
  Store all(text, kRows, length), kept(text, kRows, text.capacity), with_team = kept;
  double worst = 0;
  int before = 0;
  const int room = std::min(3, text.pieces[0] - 1);
  for (int tokens : text.pieces) {
    Text wrong = text;
    wrong.shape.window += wrong_window;
    const std::vector<float> expected = call(text, false, before, tokens, room, all, level, serial);
    const std::vector<float> found = call(wrong, true, before, tokens, room, kept, level, serial);
    CHECK(call(wrong, true, before, tokens, room, with_team, level, team) == found, "%s, %s: three threads differ", level.name, name);
    const std::size_t of_token = std::size_t(text.shape.query_heads) * text.shape.head_dim;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const int row = int(i / of_token / tokens), token = int(i / of_token % tokens);
      if (before == 0 && row == 1 && token >= tokens - room) continue;  // padding
      CHECK(std::isfinite(found[i]), "%s, %s: %d tokens behind %d", level.name, name, tokens, before);
      worst = std::max(worst, double(std::fabs(found[i] - expected[i])));
    }
    before += tokens;
    for (int kind : {0, 1}) {
      for (int head = 0; wrong_window == 0 && head < kRows * text.shape.kv_heads; ++head) {
        const int valid = before - (head < text.shape.kv_heads ? 0 : room);
        const int stored = stored_tokens(valid, text.shape.window, text.capacity);
        CHECK(stored >= std::min(valid, text.shape.window) && stored <= text.capacity, "%s: %d tokens", name, stored);
        CHECK(std::memcmp(all.at(text, kind, head, valid - stored), kept.at(text, kind, head, 0), stored * Store::of_token(text)) == 0,
              "%s, %s: not the last %d of %d tokens, of which %d are new", level.name, name, stored, valid, tokens);
      }
    }
  }
  return worst;
}

AttentionShape heads(int query_heads, int kv_heads, int head_dim, int window) {
  AttentionShape shape{query_heads, kv_heads, head_dim, head_dim};
  shape.scale = 1 / std::sqrt(float(head_dim));
  shape.window = window;
  return shape;
}

void check_all(const Level& level) {
  const std::vector<int> texts[] = {
      {7, 1, 1, 1, 1, 1, 1, 1, 1, 1},        // through the end of the window
      {50, 1, 1, 5, 1, 3, 20, 1, 1, 40, 1},  // a prompt beyond it, chunks of all sizes
      {4, 2, 2, 2, 2, 2, 2, 2, 2},
      {130, 1, 70, 1},
  };
  for (const auto& pieces : texts) {
    for (Stored stored : kAllStored) {
      if (stored == Stored::kInt8PerToken && pieces.size() != texts[1].size()) continue;  // moves rows as others do
      for (auto [window, capacity] : {std::pair{8, 8}, {8, 13}, {1, 1}, {70, 70}}) {
        Text text{heads(4, 2, 16, window), capacity, pieces, stored};
        double error = check("a text", text, level);
        CHECK(error < kTolerance, "%s: error %.2e", level.name, error);
        text.in_place = false;
        text.bias = true;
        error = check("a bias, two buffers", text, level);
        CHECK(error < kTolerance, "%s: error %.2e", level.name, error);
      }
    }
  }
}

}  // namespace

// The levels that run here, or those that the arguments name.
int main(int argc, char** argv) {
  const Text text{heads(4, 2, 16, 8), 8, {7, 1, 1, 1, 9}};
  CHECK(check("another window", text, best_level(), -1) > 1e-3, "a comparison that cannot fail");
  for (const Level* level : tested_levels(argc, argv)) {
    if (!level->runs_here()) continue;
    check_all(*level);
    std::printf("%s is right\n", level->name);
  }
}
