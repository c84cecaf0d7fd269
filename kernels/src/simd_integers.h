// Integer products of a tile of rows and a panel, over a SIMD level V (see simd_kernels.h): by dot4, or two rows by two
// columns at a time where the level has matrix instructions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgeformer {

// Bytes between what is multiplied and what is prefetched. The hardware's own prefetchers stop at the end of a page and
// reach about 2/3 of the bandwidth; see docs/explanation/kernels.md.
inline constexpr int kPrefetchDistance = 8192;

// One of the four words of four inputs each that a vector of columns has of sixteen inputs of which 6 bits are kept: of both
// words' upper bits, and all words' lower ones (see panels.h).
template <class V, int kWord>
[[gnu::always_inline]] inline typename V::Bytes word_of_sixteen(typename V::Bytes upper, typename V::Bytes pairs) {
  if constexpr (kWord % 2 == 0) upper = V::template shift_up<4>(upper);
  if constexpr (kWord == 0) pairs = V::template shift_up<2>(pairs);
  if constexpr (kWord > 1) pairs = V::template shift_down<2 * kWord - 2>(pairs);
  return V::join_six_bits(upper, pairs);
}

// Calls take(word, left, right) with the words of sixteen inputs of which 6 bits are kept, of both halves of a panel's columns.
template <class V, class F>
[[gnu::always_inline]] inline void take_sixteen(const std::uint8_t* w, bool fetch, F take) {
  using Bytes = typename V::Bytes;
  if (fetch) {
    for (int part = 0; part < 6; ++part) V::prefetch(w + part * V::kBytes + kPrefetchDistance);
  }
  const Bytes pairs[] = {V::load_bytes(w + 4 * V::kBytes), V::load_bytes(w + 5 * V::kBytes)};
  const Bytes front[] = {V::load_bytes(w), V::load_bytes(w + V::kBytes)};
  take(0, word_of_sixteen<V, 0>(front[0], pairs[0]), word_of_sixteen<V, 0>(front[1], pairs[1]));
  take(1, word_of_sixteen<V, 1>(front[0], pairs[0]), word_of_sixteen<V, 1>(front[1], pairs[1]));
  const Bytes back[] = {V::load_bytes(w + 2 * V::kBytes), V::load_bytes(w + 3 * V::kBytes)};
  take(2, word_of_sixteen<V, 2>(back[0], pairs[0]), word_of_sixteen<V, 2>(back[1], pairs[1]));
  take(3, word_of_sixteen<V, 3>(back[0], pairs[0]), word_of_sixteen<V, 3>(back[1], pairs[1]));
}

// Levels with an instruction for small matrices: multiply_pairs(sums, a, w) adds the four products of two rows and two
// columns, of eight inputs each, to sums: row 0 by columns 0 and 1, then row 1 by both.
template <class V>
concept HasMatrices = requires(typename V::Ints sums, typename V::Bytes bytes) { V::multiply_pairs(sums, bytes, bytes); };

// Exchanges the sums of two rows, of kLanes columns each, for those of pairs of columns, of both rows each; and back.
template <class V>
void exchange(typename V::Ints& first, typename V::Ints& second) {
  const typename V::Ints low = V::join_low(first, second);
  second = V::join_high(first, second);
  first = low;
}

// sums += rows times four inputs: bytes of both halves of a panel's columns, and words of the rows of a tile. Sums stay in
// registers only where it is inlined.
template <class V, int kRows, bool kNibbles>
[[gnu::always_inline]] inline void add_four(typename V::Bytes left, typename V::Bytes right, const std::int8_t* a,
                                            typename V::Ints (&sums)[kRows][2]) {
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
    const typename V::Bytes four = V::broadcast4(a + 4 * row);
    if constexpr (kNibbles) {
      sums[row][0] = V::dot4_nibbles(sums[row][0], left, four);
      sums[row][1] = V::dot4_nibbles(sums[row][1], right, four);
    } else {
      sums[row][0] = V::dot4(sums[row][0], left, four);
      sums[row][1] = V::dot4(sums[row][1], right, four);
    }
  }
}

// sums += rows times bytes w of a panel, for `inputs` inputs, a multiple of 8. a: as Activations has a tile, of which words
// of four inputs lie `stride` bytes apart. kNibbles: of weights below 16. fetch: whether w is read for the first time.
template <class V, int kRows, bool kNibbles>
void add_dot4(const std::uint8_t* w, int inputs, const std::int8_t* a, std::size_t stride, bool fetch,
              typename V::Ints (&sums)[kRows][2]) {
  for (const std::uint8_t* end = w + inputs / 4 * 2 * V::kBytes; w != end; w += 2 * V::kBytes, a += stride) {
    if (fetch) {
      V::prefetch(w + kPrefetchDistance);
      V::prefetch(w + V::kBytes + kPrefetchDistance);
    }
    add_four<V, kRows, kNibbles>(V::load_bytes(w), V::load_bytes(w + V::kBytes), a, sums);
  }
}

// sums += rows times 4-bit weights w of a panel, which are read for the first time. kKeep: they are unpacked to `bytes`,
// for the other tiles. kApart: sums of the high halves are apart until the end. fetch: whether later ones are fetched.
//
// So the memory is read while products are computed; where all of a block is unpacked before, either waits for the other.
template <class V, int kRows, bool kKeep, bool kApart>
void add_packed(const std::uint8_t* w, int inputs, const std::int8_t* a, std::size_t stride, bool fetch, std::uint8_t* bytes,
                typename V::Ints (&sums)[kRows][2]) {
  typename V::Ints high_sums[kRows][2];
  if constexpr (kApart) {
    for (auto& of_row : high_sums) of_row[0] = of_row[1] = V::splat(0);
  }
  for (const std::uint8_t* end = w + inputs / 8 * 2 * V::kBytes; w != end; w += 2 * V::kBytes, a += 2 * stride) {
    if (fetch) {
      V::prefetch(w + kPrefetchDistance);
      V::prefetch(w + V::kBytes + kPrefetchDistance);
    }
    const typename V::Bytes left = V::load_bytes(w), right = V::load_bytes(w + V::kBytes);
    const typename V::Bytes low[2] = {V::low_nibbles(left), V::low_nibbles(right)};
    add_four<V, kRows, true>(low[0], low[1], a, sums);
    const typename V::Bytes high[2] = {V::high_nibbles(left), V::high_nibbles(right)};
    add_four<V, kRows, true>(high[0], high[1], a + stride, kApart ? high_sums : sums);
    if constexpr (kKeep) {
      for (int half = 0; half < 2; ++half) {
        V::store_bytes(bytes + half * V::kBytes, low[half]);
        V::store_bytes(bytes + (2 + half) * V::kBytes, high[half]);
      }
      bytes += 4 * V::kBytes;
    }
  }
  if constexpr (kApart) {
    for (int row = 0; row < kRows; ++row) {
      for (int half = 0; half < 2; ++half) sums[row][half] = V::add(sums[row][half], high_sums[row][half]);
    }
  }
}

// The same of weights of which 6 bits are kept.
template <class V, int kRows, bool kKeep>
void add_six_bits(const std::uint8_t* w, int inputs, const std::int8_t* a, std::size_t stride, bool fetch, std::uint8_t* bytes,
                  typename V::Ints (&sums)[kRows][2]) {
  for (const std::uint8_t* end = w + inputs / 16 * 6 * V::kBytes; w != end; w += 6 * V::kBytes) {
    take_sixteen<V>(w, fetch, [&](int, typename V::Bytes left, typename V::Bytes right) __attribute__((always_inline)) {
      add_four<V, kRows, false>(left, right, a, sums);
      a += stride;
      if constexpr (kKeep) {
        V::store_bytes(bytes, left);
        V::store_bytes(bytes + V::kBytes, right);
        bytes += 2 * V::kBytes;
      }
    });
  }
}

// The same by matrices. Words of two steps, one after the other, are eight inputs of a row or of a column.
template <class V, int kRows>
  requires HasMatrices<V>
void add_matrices(const std::uint8_t* w, int inputs, const std::int8_t* a, std::size_t stride, bool fetch,
                  typename V::Ints (&sums)[kRows][2]) {
  // The last of an odd number of rows is multiplied twice.
  constexpr int kPairs = (kRows + 1) / 2;
  typename V::Ints pairs[2 * kPairs][2];
#pragma clang loop unroll(full)
  for (int row = 0; row < 2 * kPairs; ++row) {
    for (int half = 0; half < 2; ++half) pairs[row][half] = sums[row < kRows ? row : kRows - 1][half];
  }
#pragma clang loop unroll(full)
  for (int row = 0; row < 2 * kPairs; row += 2) {
    for (int half = 0; half < 2; ++half) exchange<V>(pairs[row][half], pairs[row + 1][half]);
  }
  for (const std::uint8_t* end = w + inputs / 4 * 2 * V::kBytes; w != end; w += 4 * V::kBytes, a += 2 * stride) {
    typename V::Bytes columns[2][2];
    for (int half = 0; half < 2; ++half) {
      const std::uint8_t* of_half = w + half * V::kBytes;
      if (fetch) {
        V::prefetch(of_half + kPrefetchDistance);
        V::prefetch(of_half + 2 * V::kBytes + kPrefetchDistance);
      }
      const typename V::Bytes first = V::load_bytes(of_half), second = V::load_bytes(of_half + 2 * V::kBytes);
      columns[half][0] = V::zip_low_words(first, second);
      columns[half][1] = V::zip_high_words(first, second);
    }
#pragma clang loop unroll(full)
    for (int row = 0; row < 2 * kPairs; row += 2) {
      const std::int8_t* of_row = a + 4 * row;
      const typename V::Bytes two = row + 1 < kRows
                                        ? V::zip_low_words(V::load_words(of_row), V::load_words(of_row + stride))
                                        : V::zip_low_words(V::broadcast4(of_row), V::broadcast4(of_row + stride));
      for (int half = 0; half < 2; ++half) {
        pairs[row][half] = V::multiply_pairs(pairs[row][half], two, columns[half][0]);
        pairs[row + 1][half] = V::multiply_pairs(pairs[row + 1][half], two, columns[half][1]);
      }
    }
  }
#pragma clang loop unroll(full)
  for (int row = 0; row < 2 * kPairs; row += 2) {
    for (int half = 0; half < 2; ++half) exchange<V>(pairs[row][half], pairs[row + 1][half]);
  }
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
    for (int half = 0; half < 2; ++half) sums[row][half] = pairs[row][half];
  }
}

// The faster of both. One row has no pair.
template <class V, int kRows, bool kNibbles>
void add_products(const std::uint8_t* w, int inputs, const std::int8_t* a, std::size_t stride, bool fetch,
                  typename V::Ints (&sums)[kRows][2]) {
  if constexpr (HasMatrices<V> && kRows > 1) {
    add_matrices<V, kRows>(w, inputs, a, stride, fetch, sums);
  } else {
    add_dot4<V, kRows, kNibbles>(w, inputs, a, stride, fetch, sums);
  }
}

}  // namespace edgeformer
