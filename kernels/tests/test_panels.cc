// Packing, in words and by several threads, against the definition of panels, weight by weight: bytes are equal.
#include "panels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "check.h"
#include "level.h"
#include "packed_integers.h"
#include "random_weights.h"
#include "team.h"

using namespace edgeformer;

namespace {

int exponent_of(const Weights& weights, int output) {
  float largest = 0;
  for (int block = 0; block < weights.blocks(); ++block) {
    largest = std::fmax(largest, std::fabs(weights.scale(output, block)));
  }
  return largest > 0 ? std::ilogb(largest) - 14 : 0;
}

// Bits that panels keep of an integer: 6 of 8, where the lowest two are 0 and all comes in whole sixteens.
int kept_bits_of(const Weights& weights) {
  if (weights.bits == 4 || weights.block % 16 || weights.block > 256 || weights.inputs % 16) return weights.bits;
  for (int output = 0; output < weights.outputs; ++output) {
    for (int input = 0; input < weights.inputs; ++input) {
      if (weights.integer(output, input) & 3) return 8;
    }
  }
  return 6;
}

// The bytes of panels, straight from the description in panels.h.
std::vector<std::uint8_t> packed_slowly(const Weights& weights, int columns, int bias) {
  bias = weights.bits == 8 ? bias : 0;
  const std::size_t panels = (weights.outputs + columns - 1) / columns, blocks = weights.blocks(), block = weights.block;
  const int kept = kept_bits_of(weights);
  const std::size_t block_bytes = columns * (block * kept / 8 + 2);
  const std::size_t points_bytes = weights.zero_points ? blocks * columns : 0;
  const std::size_t of_last = (weights.inputs - (blocks - 1) * block + 7) / 8 * 8;
  const std::size_t lacking_bytes = columns * (block - of_last) * kept / 8;
  const std::size_t blocks_bytes = blocks * block_bytes - lacking_bytes;
  const std::size_t panel_bytes = (blocks_bytes + points_bytes + 63) / 64 * 64;
  std::vector<std::uint8_t> bytes(64 + (panels * (panel_bytes + columns * 4) + lacking_bytes + 63) / 64 * 64);
  const int header[] = {kPanelsVersion, columns, bias, weights.outputs, weights.inputs, weights.bits, weights.block,
                        weights.zero_points != nullptr, kept};
  std::memcpy(bytes.data(), "edgeformer pack", 16);
  std::memcpy(bytes.data() + 16, header, sizeof header);
  for (int output = 0; output < weights.outputs; ++output) {
    const int column = output % columns, exponent = exponent_of(weights, output);
    std::uint8_t* panel = bytes.data() + 64 + output / columns * panel_bytes;
    const float factor = std::ldexp(1.0f, exponent);
    std::memcpy(bytes.data() + 64 + panels * panel_bytes + output * 4, &factor, 4);
    for (std::size_t at = 0; at < blocks; ++at) {
      std::uint8_t* to = panel + at * block_bytes;
      const std::size_t inputs = at + 1 < blocks ? block : of_last;
      for (std::size_t within = 0; within < inputs; ++within) {
        const int integer = weights.integer(output, at * block + within) - bias;
        const auto byte = [&](std::size_t step) -> std::uint8_t& { return to[(step * columns + column) * 4 + within % 4]; };
        if (kept == 6) {
          const std::size_t sixteen = within / 16, word = within % 16 / 4;
          byte(sixteen * 3 + word / 2) |= word % 2 ? integer & 0xf0 : (integer & 0xf0) >> 4;
          byte(sixteen * 3 + 2) |= (integer & 0xc) >> 2 << 2 * word;
          continue;
        }
        const std::size_t step = within * weights.bits / 32;
        const bool high = weights.bits == 4 && within % 8 >= 4;
        byte(step) |= integer << (high ? 4 : 0);
      }
      const Half scale = to_half(std::ldexp(weights.scale(output, at), -exponent));
      std::memcpy(to + columns * inputs * kept / 8 + column * 2, &scale, 2);
      if (weights.zero_points) panel[blocks_bytes + at * columns + column] = weights.zero_point(output, at) - bias;
    }
  }
  return bytes;
}

void check_bytes(const Weights& weights, int columns, int bias, Parallel& parallel) {
  const std::vector<std::uint8_t> expected = packed_slowly(weights, columns, bias);
  const Panels panels(weights, columns, bias, parallel);
  const char* form = "N=%d K=%d bits=%d block=%d zero_points=%d columns=%d bias=%d";
  char shape[200];
  std::snprintf(shape, sizeof shape, form, weights.outputs, weights.inputs, weights.bits, weights.block,
                weights.zero_points != nullptr, columns, bias);
  CHECK(panels.bytes().size() == expected.size(), "%s: %zu bytes, not %zu", shape, panels.bytes().size(), expected.size());
  CHECK(reinterpret_cast<std::uintptr_t>(panels.bytes().data()) % kCacheLine == 0, "%s: alignment", shape);
  CHECK(std::equal(expected.begin(), expected.end(), panels.bytes().begin()), "%s: other bytes", shape);
  // Stored panels are read where they lie.
  const std::string reason = Panels::why_unreadable(panels.bytes(), weights.sizes(), columns, bias);
  CHECK(reason.empty(), "%s: %s", shape, reason.c_str());
  const Panels stored(panels.bytes());
  CHECK(stored.bytes().data() == panels.bytes().data() && stored.bytes().size() == panels.bytes().size(), "%s", shape);
  CHECK(stored.factors(0) == panels.factors(0) && stored.zero_points(0) == panels.zero_points(0), "%s", shape);
  CHECK(stored.inputs() == weights.inputs && stored.has_zero_points() == panels.has_zero_points(), "%s", shape);
  CHECK(stored.kept_bits() == kept_bits_of(weights) && panels.kept_bits() == stored.kept_bits(), "%s: kept bits", shape);
  CHECK(stored.common_zero_point() == panels.common_zero_point() && stored.blocks() == weights.blocks(), "%s", shape);
}

void check_levels() {
  std::mt19937 random(0);
  Serial serial;
  Team team(3);
  for (const Level* level : levels()) {
    for (int round = 0; round < 300; ++round) {
      const int outputs = 1 + random() % 200, bits = 4 + 2 * (random() % 3);
      const int inputs = 1 + (random() % 2 ? random() % 600 : 15 + random() % 40 * 16);
      const int block = 8 * (2 + random() % (random() % 4 ? 15 : 31));
      const RandomWeights weights(outputs, inputs, bits, block, random() % 2, random());
      check_bytes(weights.view, level->columns, random() % 2 ? 128 : 0, round % 2 ? static_cast<Parallel&>(team) : serial);
    }
  }
  const RandomWeights large(1000, 2048, 4, 128, true, 1);  // several chunks for each thread
  check_bytes(large.view, 32, 0, team);
}

// Integers that a file has without their unused bits are packed as those that have them.
void check_packed_integers() {
  std::mt19937 random(1);
  Serial serial;
  for (int round = 0; round < 120; ++round) {
    const int bits = std::array{3, 5, 6}[round % 3], columns = std::array{8, 16, 32}[random() % 3];
    const int block = 16 << random() % 5, inputs = 1 + random() % 500, outputs = 1 + random() % 70;
    RandomWeights plain(outputs, inputs, bits == 3 ? 4 : 8, block, false, random());
    const Packing packing = packing_of(bits);
    const std::uint8_t used = bits == 3 ? 0xee : bits == 5 ? 0xf8 : 0xfc;
    for (auto& byte : plain.integers) byte &= used;
    const std::size_t bytes = block * plain.view.bits / 8, part = bytes / packing.group;
    std::vector<std::uint8_t> stored(plain.integers.size() / packing.group * packing.stored);
    for (std::size_t at = 0; at < plain.integers.size() / bytes; ++at) {
      const std::uint8_t* from = plain.integers.data() + at * bytes;
      std::uint8_t* to = stored.data() + at * part * packing.stored;
      for (std::size_t i = 0; i < part; ++i) {
        const auto of = [&](int byte) { return from[byte * part + i]; };
        for (int byte = 0; byte < packing.stored; ++byte) to[byte * part + i] = of(byte);
        if (bits == 3) {
          for (int byte = 0; byte < 3; ++byte) to[byte * part + i] |= of(3) >> (byte + 1) & 0x11;
        } else if (bits == 6) {
          for (int byte = 0; byte < 3; ++byte) to[byte * part + i] |= of(3) >> (6 - 2 * byte) & 3;
        } else {
          for (int byte = 0; byte < 3; ++byte) to[byte * part + i] |= of(5 + byte) >> 5;
          for (int byte = 3; byte < 5; ++byte) to[byte * part + i] |= of(2 + byte) >> 3 & 3;
          to[3 * part + i] |= of(7) >> 2 & 4;
          to[4 * part + i] |= of(7) >> 1 & 4;
        }
      }
    }
    Weights packed = plain.view;
    packed.integers = stored.data();
    packed.packed_bits = bits;
    const Panels expected(plain.view, columns, 128, serial), found(packed, columns, 128, serial);
    CHECK(std::ranges::equal(expected.bytes(), found.bytes()), "packed integers of %d bits, block %d, K=%d", bits, block, inputs);
  }
}

// A single integer with one of the lowest two bits, wherever it is, keeps all 8.
void check_kept_bits() {
  Serial serial;
  const auto kept = [&](const RandomWeights& weights) { return Panels(weights.view, 16, 0, serial).kept_bits(); };
  RandomWeights weights(40, 48, 6, 32, false, 3);
  CHECK(kept(weights) == 6, "6 bits of 8 are not kept as such");
  for (std::size_t at : {0, 47, 64 * 17 + 5, 64 * 39 + 47}) {
    for (int bit : {1, 2}) {
      weights.integers[at] |= bit;
      CHECK(kept(weights) == 8, "a bit of %d at %zu is lost", bit, at);
      weights.integers[at] &= ~bit;
    }
  }
  for (std::size_t at : {48, 63, 64 * 39 + 63}) weights.integers[at] |= 3;  // behind the last input
  CHECK(kept(weights) == 6, "what is behind the last input counts");
  CHECK(kept(RandomWeights(3, 40, 6, 32, false, 0)) == 8 && kept(RandomWeights(3, 48, 6, 24, false, 0)) == 8, "not in sixteens");
  CHECK(kept(RandomWeights(3, 256, 6, 256, true, 0)) == 6 && kept(RandomWeights(3, 272, 6, 272, false, 0)) == 8, "block");
}

void check_scales_beyond_halves() {
  Serial serial;
  RandomWeights weights(3, 64, 4, 32, false, 0);
  weights.scales = {3e38f, 1e30f, 1e-44f, -1e-45f, 0.0f, 0.0f};
  weights.view.scales = weights.scales.data();
  check_bytes(weights.view, 16, 0, serial);
}

void check_refusals() {
  Serial serial;
  const RandomWeights weights(70, 200, 8, 32, true, 0);
  const Panels panels(weights.view, 32, 128, serial);
  const std::size_t size = panels.bytes().size();
  AlignedArray<std::uint8_t> copy = allocate_aligned<std::uint8_t>(size + 64);
  const auto why = [&](std::size_t at, int value, std::size_t bytes, int shift = 0) {
    std::memcpy(copy.get() + shift, panels.bytes().data(), size);
    if (at != 0) std::memcpy(copy.get() + at, &value, 4);
    return Panels::why_unreadable({copy.get() + shift, bytes}, weights.view.sizes(), 32, 128);
  };
  const auto check = [&](const std::string& found, const char* expected) {
    CHECK(found == expected, "\"%s\", not \"%s\"", found.c_str(), expected);
  };
  check(why(0, 0, size), "");
  check(why(0, 0, 63), "has 63 bytes, fewer than a header");
  check(why(0, 0, 0), "has 0 bytes, fewer than a header");
  check(why(4, 0, size), "holds no panels");
  const char* current = ", and these kernels read panels 3, columns 32, byte bias 128";
  check(why(16, 9, size), (std::string("holds panels 9, columns 32, byte bias 128") + current).c_str());
  check(why(20, 16, size), (std::string("holds panels 3, columns 16, byte bias 128") + current).c_str());
  check(why(24, 0, size), (std::string("holds panels 3, columns 32, byte bias 0") + current).c_str());
  for (int kept : {0, 4, 7}) {
    check(why(48, kept, size), ("keeps " + std::to_string(kept) + " of 8 bits").c_str());
  }
  check(why(48, 6, size), "keeps 6 of 8 bits");  // 200 inputs are no whole sixteens
  for (std::size_t at = 28; at <= 40; at += 4) check(why(at, 1 << 27, size), "holds panels of weights of another size");
  check(why(44, 2, size), "holds panels of weights of another size");
  // Without the bytes of zero points the same weights take less.
  check(why(44, 0, size), "has 22528 bytes; its panels want 21760");
  check(why(0, 0, size - 1), "has 22527 bytes; its panels want 22528");
  check(why(0, 0, size, 4), "does not begin at a cache line");
}

void check_formats() {
  CHECK(Panels::format(32, 0) == "panels 3, columns 32, byte bias 0", "%s", Panels::format(32, 0).c_str());
  CHECK(Panels::format(32, 0) != Panels::format(16, 0) && Panels::format(16, 0) != Panels::format(16, 128), "formats");
}

}  // namespace

int main() {
  check_levels();
  check_kept_bits();
  check_packed_integers();
  check_scales_beyond_halves();
  check_refusals();
  check_formats();
}
