#include "panels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "packed_integers.h"

namespace edgeformer {
namespace {

static_assert(std::endian::native == std::endian::little, "a word's first input is in its lowest bits");

constexpr char kMagic[16] = "edgeformer pack";

struct Header {
  char magic[16];
  std::int32_t version, columns, bias, outputs, inputs, bits, block, own_zero_points, kept_bits;
  std::int32_t zeros[3];
};
static_assert(sizeof(Header) == kCacheLine);

// Bytes of panels that are worth a chunk of packing.
constexpr std::size_t kPackedBytes = 256 << 10;

// The exponent by which a column's scales are divided: its largest scale becomes less than 2^15.
int exponent_of_scales(const Weights& weights, int output) {
  float largest = 0;
  for (int block = 0; block < weights.blocks(); ++block) {
    largest = std::max(largest, std::fabs(weights.scale(output, block)));
  }
  return largest > 0 ? std::ilogb(largest) - 14 : 0;
}

// Eight 4-bit integers 0 … 7, the first in the lowest bits, in the order 0 4 1 5 2 6 3 7.
std::uint32_t interleaved(std::uint32_t word) {
  word = (word & 0xff0000ff) | (word & 0x0000ff00) << 8 | (word & 0x00ff0000) >> 8;
  return (word & 0xf00ff00f) | (word & 0x00f000f0) << 4 | (word & 0x0f000f00) >> 4;
}

// Whether integers of 8 bits can be kept as 6, by what determines their size.
bool may_lack_bits(const WeightSizes& sizes) {
  return sizes.bits == 8 && sizes.block % 16 == 0 && sizes.block <= kMostPacked && sizes.inputs % 16 == 0;
}

int kept_bits_of(const Weights& weights) {
  if (!may_lack_bits(weights.sizes())) return weights.bits;
  if (weights.packed_bits != 0) return 6;
  for (int output = 0; output < weights.outputs; ++output) {
    const std::uint8_t* row = weights.integers + output * weights.row_bytes();
    if (std::any_of(row, row + weights.inputs, [](std::uint8_t integer) { return integer % 4 != 0; })) return 8;
  }
  return 6;
}

// Stores words of several rows: for each step the words of all rows, one after the other.
template <class F>
void transpose_words(const std::uint8_t* from, std::size_t row_bytes, int rows, int steps, std::size_t step_bytes,
                     std::uint8_t* to, F change) {
  for (int step = 0; step < steps; ++step, from += 4, to += step_bytes) {
    for (int row = 0; row < rows; ++row) {
      std::uint32_t word;
      std::memcpy(&word, from + row * row_bytes, 4);
      word = change(word);
      std::memcpy(to + row * 4, &word, 4);
    }
  }
}

// The same of integers of 6 bits: three words of sixteen integers.
void transpose_sixteens(const std::uint8_t* from, std::size_t row_bytes, int rows, int steps, std::size_t step_bytes,
                        std::uint32_t flipped, std::uint8_t* to) {
  constexpr std::uint32_t kUpper = 0xf0f0f0f0, kPair = 0x0c0c0c0c;
  for (int step = 0; step < steps; ++step, from += 16, to += 3 * step_bytes) {
    for (int row = 0; row < rows; ++row) {
      std::uint32_t words[4];
      std::memcpy(words, from + row * row_bytes, 16);
      for (std::uint32_t& word : words) word ^= flipped;
      const std::uint32_t kept[] = {
          (words[0] & kUpper) >> 4 | (words[1] & kUpper),
          (words[2] & kUpper) >> 4 | (words[3] & kUpper),
          (words[0] & kPair) >> 2 | (words[1] & kPair) | (words[2] & kPair) << 2 | (words[3] & kPair) << 4,
      };
      for (int part = 0; part < 3; ++part) std::memcpy(to + part * step_bytes + row * 4, &kept[part], 4);
    }
  }
}

}  // namespace

std::string Panels::format(int columns, int byte_bias) {
  return "panels " + std::to_string(kPanelsVersion) + ", columns " + std::to_string(columns) + ", byte bias " +
         std::to_string(byte_bias);
}

std::string Panels::why_unreadable(std::span<const std::uint8_t> stored, const WeightSizes& sizes, int columns,
                                   int byte_bias) {
  Header header;
  if (stored.size() < sizeof header) return "has " + std::to_string(stored.size()) + " bytes, fewer than a header";
  std::memcpy(&header, stored.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof header.magic) != 0) return "holds no panels";
  const int bias = sizes.bits == 8 ? byte_bias : 0;
  if (header.version != kPanelsVersion || header.columns != columns || header.bias != bias) {
    return "holds panels " + std::to_string(header.version) + ", columns " + std::to_string(header.columns) +
           ", byte bias " + std::to_string(header.bias) + ", and these kernels read " + format(columns, bias);
  }
  if (header.outputs != sizes.outputs || header.inputs != sizes.inputs || header.bits != sizes.bits ||
      header.block != sizes.block || header.own_zero_points < 0 || header.own_zero_points > 1) {
    return "holds panels of weights of another size";
  }
  if (header.kept_bits != sizes.bits && (header.kept_bits != 6 || !may_lack_bits(sizes))) {
    return "keeps " + std::to_string(header.kept_bits) + " of " + std::to_string(sizes.bits) + " bits";
  }
  const std::size_t size = Panels(stored).size_bytes();
  if (stored.size() != size) {
    return "has " + std::to_string(stored.size()) + " bytes; its panels want " + std::to_string(size);
  }
  if (reinterpret_cast<std::uintptr_t>(stored.data()) % kCacheLine != 0) return "does not begin at a cache line";
  return "";
}

Panels::Panels(const WeightSizes& sizes, int columns, int bias, int kept_bits)
    : sizes_(sizes), blocks_(sizes.blocks()), columns_(columns), bias_(bias), kept_bits_(kept_bits) {}

Panels::Panels(std::span<const std::uint8_t> stored) : bytes_(stored.data()) {
  Header header;
  std::memcpy(&header, stored.data(), sizeof header);
  sizes_ = {header.outputs, header.inputs, header.bits, header.block, header.own_zero_points != 0};
  blocks_ = sizes_.blocks();
  columns_ = header.columns;
  bias_ = header.bias;
  kept_bits_ = header.kept_bits;
}

Panels::Panels(const Weights& weights, int columns, int byte_bias, Parallel& parallel)
    : Panels(weights.sizes(), columns, weights.bits == 8 ? byte_bias : 0, kept_bits_of(weights)) {
  pack_all(weights, parallel);
}

Panels::Panels(const PerChannelWeights& weights, int columns, int byte_bias, Parallel& parallel)
    : Panels(weights.sizes(), columns, byte_bias, weights.sizes().bits) {
  pack_all(weights, parallel);
}

template <class AnyWeights>
void Panels::pack_all(const AnyWeights& weights, Parallel& parallel) {
  own_ = allocate_weights(size_bytes());
  bytes_ = own_.get();
  Header header{{}, kPanelsVersion, columns_, bias_, outputs(), inputs(), bits(), block(), has_zero_points(), kept_bits_, {}};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  std::memcpy(own_.get(), &header, sizeof header);
  std::uint8_t* first = own_.get() + kCacheLine;
  std::uint8_t* after = first + count() * panel_bytes();
  std::memset(after, 0, own_.get() + size_bytes() - after);
  float* factors = reinterpret_cast<float*>(after);
  const std::size_t panels = count(), chunks = std::min(panels, 1 + panels * panel_bytes() / kPackedBytes);
  parallel.run(chunks, Task([&](std::size_t chunk) {
                 for (std::size_t panel = chunk * panels / chunks; panel < (chunk + 1) * panels / chunks; ++panel) {
                   pack(weights, panel, first + panel * panel_bytes(), factors + panel * columns_);
                 }
               }));
}

void Panels::pack(const Weights& weights, int panel, std::uint8_t* to, float* factors) const {
  const int first = panel * columns_, columns = std::min(columns_, outputs() - first);
  const std::size_t used = blocks_bytes() + (has_zero_points() ? blocks() * columns_ : 0);
  if (columns < columns_) std::memset(to, 0, used);
  std::memset(to + used, 0, panel_bytes() - used);

  std::vector<double> divisors(columns);
  for (int column = 0; column < columns; ++column) {
    const int exponent = exponent_of_scales(weights, first + column);
    factors[column] = std::ldexp(1.0f, exponent);
    divisors[column] = std::ldexp(1.0, -exponent);
  }
  const std::size_t bytes_of_block = block() * bits() / 8, row_bytes = blocks() * bytes_of_block;
  const std::uint8_t* from = weights.integers + first * weights.row_bytes();
  std::vector<std::uint8_t> unpacked;
  if (weights.packed_bits != 0) {
    const std::size_t stored_bytes = block() * weights.packed_bits / 8, all = static_cast<std::size_t>(columns) * blocks();
    unpacked.resize(all * bytes_of_block);
    for (std::size_t at = 0; at < all; ++at) {
      unpack_block(from + at * stored_bytes, weights.packed_bits, bytes_of_block, unpacked.data() + at * bytes_of_block);
    }
    from = unpacked.data();
  }
  std::uint8_t* points = to + blocks_bytes();
  const std::uint32_t flipped = bias_ ? 0x80808080 : 0;
  for (int block = 0; block < blocks(); ++block, from += bytes_of_block, to += block_bytes(), points += columns_) {
    const int steps = inputs_of(block) * bits() / 32;
    if (bits() == 4) {
      transpose_words(from, row_bytes, columns, steps, 4 * columns_, to, interleaved);
    } else if (kept_bits_ == 6) {
      transpose_sixteens(from, row_bytes, columns, inputs_of(block) / 16, 4 * columns_, flipped, to);
    } else {
      const auto less_bias = [=](std::uint32_t word) { return word ^ flipped; };
      transpose_words(from, row_bytes, columns, steps, 4 * columns_, to, less_bias);
    }
    Half* scales = reinterpret_cast<Half*>(to + integer_bytes(inputs_of(block)));
    for (int column = 0; column < columns; ++column) {
      scales[column] = to_half(static_cast<float>(weights.scale(first + column, block) * divisors[column]));
      if (has_zero_points()) points[column] = weights.zero_point(first + column, block) - bias_;
    }
  }
}

void Panels::pack(const PerChannelWeights& weights, int panel, std::uint8_t* to, float* factors) const {
  const int first = panel * columns_, columns = std::min(columns_, outputs() - first);
  const int without_sign = bias_ ? 0 : 128;
  std::memset(to, 0, panel_bytes());
  std::fill_n(reinterpret_cast<Half*>(to + integer_bytes(block())), columns, to_half(1.0f));
  std::copy_n(weights.scales + first, columns, factors);
  for (int input = 0; input < weights.inputs; ++input) {
    const std::int8_t* from = weights.integers + static_cast<std::size_t>(input) * outputs() + first;
    std::uint8_t* step = to + static_cast<std::size_t>(input / 4) * columns_ * 4 + input % 4;
    for (int column = 0; column < columns; ++column) {
      step[column * 4] = static_cast<std::uint8_t>(from[column] + without_sign);
    }
  }
}

}  // namespace edgeformer
