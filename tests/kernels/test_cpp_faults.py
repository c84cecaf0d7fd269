"""Faults in the C++ code of kernels/: each is built into a program of its tests, which must find it."""

import re
import signal
import subprocess
from typing import NamedTuple

import pytest
from build_kernels import KERNELS, compiler
from plant_faults import compile_file, copy_of_sources, link_program


class Fault(NamedTuple):
    """The program that must find it, the file in kernels/src, what is right there, what is wrong, and what is compiled.

    compiled: the file that includes a header; by default the SIMD level that the programs test first. only: the levels
    that run what is wrong; by default all.
    """

    program: str
    file: str
    right: str
    wrong: str
    compiled: str | None = None
    only: tuple[str, ...] = ()

    def compiled_at(self, level: str) -> str:
        return self.compiled or (self.file if self.file.endswith(".cc") else level)


PAIRS = ("level_avx512_bf16.cc",)
"""The file of the level that multiplies pairs of bfloat16."""

REGISTERS = (*PAIRS, "level_avx512.cc")
"""Files of levels that have registers for the results of several blocks."""

LEVELS = {"level_avx512.cc": "avx512-vnni", "level_neon.cc": "neon-dotprod"}
"""Names of levels that are not those of their files."""

UNIT = "level_plain_tiles.cc"
"""The file of the level with a unit of matrix tiles in plain C++, which runs everywhere."""

BYTES = "level_avx2_bytes.cc"
"""The file of the level with what AVX2-VNNI does beside its own instructions, which runs on any x86 with AVX2."""

ROWS = "std::min(rows, (part + 1) * tiles / parts * tile);"
FAULTS = {
    "rows of a batch that are rounded otherwise than one alone": Fault(
        "quantized_linear",
        "simd_row_tiles.h",
        "V::multiply_add(exact, scale, V::load(result))",
        "V::multiply_add(V::multiply(exact, of_row), scales[half], V::load(result))",
        "level_plain.cc",  # of which results are in memory
    ),
    "results in registers that are rounded otherwise": Fault(
        "quantized_linear",
        "simd_row_tiles.h",
        "V::multiply_add(exact, scale, kept[row][half])",
        "V::multiply_add(V::multiply(exact, of_row), scales[half], kept[row][half])",
        only=REGISTERS,
    ),
    "results in registers that do not begin anew": Fault(
        "quantized_linear", "simd_gemm.h", "index == 0,", "false,", only=REGISTERS
    ),
    "results in registers without those of other blocks": Fault(
        "quantized_linear", "simd_gemm.h", "index == 0,", "true,", only=REGISTERS
    ),
    "a tile with the scales of the one before": Fault("quantized_linear", "simd_gemm.h", "tile.scales += size;", ""),
    "the last block in the place of a whole one": Fault(
        "panels", "panels.h", "blocks() * block_bytes() - lacking_bytes();", "blocks() * block_bytes();", "panels.cc"
    ),
    "the scales of a last block behind a whole one": Fault(
        "quantized_linear",
        "simd_kernels.h",
        "w += panels.integer_bytes(inputs);",
        "w += panels.integer_bytes(panels.block());",
    ),
    "the high halves of packed weights times the inputs of the low ones": Fault(
        "quantized_linear", "simd_integers.h", "high[1], a + stride, kApart", "high[1], a, kApart"
    ),
    "high halves that the other tiles do not get": Fault(
        "quantized_linear",
        "simd_integers.h",
        "V::store_bytes(bytes + (2 + half) * V::kBytes, high[half]);",
        "V::store_bytes(bytes + (2 + half) * V::kBytes, low[half]);",
    ),
    "lower bits of another word of sixteen inputs": Fault(
        "quantized_linear", "simd_integers.h", "shift_down<2 * kWord - 2>(pairs)", "shift_down<2>(pairs)"
    ),
    "upper bits of another word of sixteen inputs": Fault(
        "quantized_linear", "simd_integers.h", "word_of_sixteen<V, 2>(back[0],", "word_of_sixteen<V, 2>(front[0],"
    ),
    "words of six bits that the other tiles do not get": Fault(
        "quantized_linear",
        "simd_integers.h",
        "V::store_bytes(bytes + V::kBytes, right);",
        "V::store_bytes(bytes + V::kBytes, left);",
    ),
    "six bits of a block at the place of another": Fault(
        "quantized_linear", "simd_gemm.h", "to += blocks.inputs * 2 * V::kLanes)", "to += 0)", only=REGISTERS
    ),
    "six bits that the unit reads as bytes": Fault(
        "quantized_linear", "simd_gemm.h", "kBits < 8 ? block_.unpacked", "kBits < 6 ? block_.unpacked", UNIT
    ),
    "a seventh bit that is lost": Fault("panels", "panels.cc", "integer % 4 != 0", "integer % 2 != 0"),
    "bits of the first outputs alone": Fault(
        "panels", "panels.cc", "weights.integers + output * weights.row_bytes()", "weights.integers"
    ),
    "a bias that six bits keep": Fault("panels", "panels.cc", "word ^= flipped;", ";"),
    "stored panels that keep six bits of any weights": Fault(
        "panels", "panels.cc", "header.kept_bits != 6 || !may_lack_bits(sizes)", "header.kept_bits != 6"
    ),
    "bits of packed integers that stay in the bytes of others": Fault(
        "panels", "packed_integers.h", "to[i] = from[i] & kept;", "to[i] = from[i];", "panels.cc"
    ),
    "a bit of packed integers of 5 bits at the place of another": Fault(
        "panels", "packed_integers.h", "of(4, 4) << 1", "of(4, 4) << 2", "panels.cc"
    ),
    "packed integers of the first block in all": Fault(
        "panels", "panels.cc", "unpack_block(from + at * stored_bytes,", "unpack_block(from,"
    ),
    "columns of floats beyond the last": Fault(
        "float_linear", "simd_floats.h", "left < kColumns ? last : y", "left < 1 ? last : y"
    ),
    "inputs of floats behind the first ones that start anew": Fault(
        "float_linear", "simd_floats.h", "if (first == 0) {", "if (first >= 0) {"
    ),
    "columns of a panel of floats that keep what was there": Fault(
        "float_linear", "float_weights.cc", "from + input * outputs + first, count", "from + input * outputs, count"
    ),
    "transposed weights that are not": Fault(
        "float_linear", "float_weights.cc", "from[(first + column) * inputs + input]", "from[first + column]"
    ),
    "rows of floats that no thread takes": Fault(
        "float_linear",
        "float_linear.cc",
        "std::min(rows, (part + 1) * tiles / parts * tile);",
        "std::max(row, std::min(rows, (part + 1) * tiles / parts * tile) - 1);",
    ),
    "activations of the unit without their smallest part": Fault(
        "float_linear",
        "tile_products.h",
        "int part = PartsProduct::kParts - 1;",
        "int part = PartsProduct::kParts - 2;",
        UNIT,
    ),
    "parts that are not what is left": Fault(
        "float_linear",
        "simd_floats.h",
        "halves[half] = V::subtract(halves[half],",
        "halves[half] = V::add(halves[half],",
        UNIT,
    ),
    "sums of the unit that replace those before": Fault(
        "float_linear", "simd_floats.h", "is_first_ ? sums : V::add(V::load(to_ + i), sums)", "sums", UNIT
    ),
    "rows of the unit at the place of others": Fault(
        "float_linear", "simd_floats.h", "to_ = totals_ + at * kColumns;", "to_ = totals_;", UNIT
    ),
    "a gate of floats over the rows of others": Fault(
        "float_linear", "float_linear.cc", "ups + row * columns, columns", "ups, columns"
    ),
    "the scale of another token": Fault(
        "per_token_linear", "simd_per_token.h", "x.scales[row + each]", "x.scales[row]"
    ),
    "the bias of other outputs": Fault("per_token_linear", "simd_per_token.h", "finish.bias + column", "finish.bias"),
    "a gate that is not activated": Fault(
        "per_token_linear",
        "simd_per_token.h",
        "V::multiply(activate(gate), up)",
        "V::multiply(gate, activate(up))",
    ),
    "an inverse instead of a division": Fault(
        "per_token_linear",
        "simd_kernels.h",
        "V::divide(V::load(x + i), V::splat(step))",
        "V::multiply(V::load(x + i), V::splat(1.0f / step))",
    ),
    "signs that stay": Fault("per_token_linear", "panels.cc", "from[column] + without_sign", "from[column]"),
    "rows that no thread takes": Fault(
        "per_token_linear",
        "per_token_linear.cc",
        "(chunk + 1) * rows / chunks - first",
        "(chunk + 1) * rows / chunks - first - chunk % 2",
    ),
    "a block that is dropped": Fault(
        "quantized_linear",
        "simd_kernels.h",
        "block < panels.blocks(); ++block",
        "block + 1 < panels.blocks(); ++block",
    ),
    "a tail without its last number": Fault(
        "quantized_linear", "simd_kernels.h", "i + j >= size ? 0.0f", "i + j + 1 >= size ? 0.0f"
    ),
    "columns beyond the last": Fault(
        "quantized_linear", "simd_kernels.h", "if (to == padded) std::", "if (to == nullptr) std::"
    ),
    "halves of bytes that are not exchanged": Fault(
        "panels",
        "panels.cc",
        "(word & 0x00f000f0) << 4 | (word & 0x0f000f00) >> 4",
        "(word & 0x0ff00ff0)",
    ),
    "a panel that is not packed": Fault(
        "panels",
        "panels.cc",
        "panel < (chunk + 1) * panels / chunks",
        "panel + 1 < (chunk + 1) * panels / chunks",
    ),
    "a bias that bytes keep": Fault("panels", "panels.cc", "word ^ flipped", "word"),
    "stored panels of any length": Fault(
        "panels", "panels.cc", "stored.size() != size", "stored.size() < sizeof header"
    ),
    "stored panels of an old format": Fault("panels", "panels.cc", "header.version != kPanelsVersion || ", ""),
    "stored panels of other weights": Fault("panels", "panels.cc", "header.inputs != sizes.inputs || ", ""),
    "stored panels at any address": Fault(
        "panels", "panels.cc", "(stored.data()) % kCacheLine != 0", "(stored.data()) == 0"
    ),
    "memory without a file that is emptied": Fault(
        "file_pages", "file_pages.cc", "inode != 0 && begin < end", "begin < end"
    ),
    "weights that overlap": Fault(
        "weight_memory", "weight_memory.cc", "chunk->next + bytes);", "chunk->next + bytes / 2);"
    ),
    "weights that are freed with their neighbours": Fault(
        "weight_memory",
        "weight_memory.cc",
        "if (first < last) madvise(first, last - first",
        "madvise(first, last + page_ - first",
    ),
    "weights that are never freed": Fault(
        "weight_memory", "weight_memory.cc", "if (first < last) madvise", "if (first > last) madvise"
    ),
    "chunks that are never freed": Fault(
        "weight_memory", "weight_memory.cc", "munmap(chunk->mapped,", "static_cast<void>("
    ),
    "a zero point of all blocks that is ignored": Fault(
        "quantized_linear", "simd_kernels.h", "own_zero_points == nullptr ? offset : 0", "0 * offset"
    ),
    "zero points of blocks that are ignored": Fault(
        "quantized_linear", "simd_kernels.h", "(zero_points == nullptr)", "(zero_points == nullptr || sum == sum)"
    ),
    "rows that are left out": Fault(
        "quantized_linear", "quantized_linear.cc", ROWS, f"std::max(row, {ROWS[:-1]} - 1);"
    ),
    "scales that leave the range of halves": Fault(
        "panels", "panels.cc", "std::ilogb(largest) - 14", "0 * std::ilogb(largest)"
    ),
    "rows of a feed-forward in the place of others": Fault(
        "quantized_linear", "quantized_linear.cc", "y + first * outputs(), serial", "y + first * inputs(), serial"
    ),
    "a row of a feed-forward left out": Fault(
        "quantized_linear",
        "quantized_linear.cc",
        "run_rows(x + first * inputs(), end - first,",
        "run_rows(x + first * inputs(), end - first - (first > 0),",
    ),
    "a number that is not finite": Fault("quantized_linear", "simd_kernels.h", "scale = step + nan;", "scale = step;"),
    "a window of one key more": Fault("attention", "attention_rows.h", "token + 1 - window;", "token - window;"),
    "keys of the future": Fault("attention", "attention_rows.h", "position + token + 1;", "position + token + 2;"),
    "the keys of a tile's first token alone": Fault(
        "attention",
        "simd_prompts.h",
        "rows.end_of_keys((row + count - 1) / rows.heads)",
        "rows.end_of_keys(row / rows.heads)",
    ),
    "rows of a tile with the sums of others": Fault(
        "attention", "simd_prompts.h", "(to, row + each, of_row", "(to, each, of_row"
    ),
    "half of the weights of pairs are not summed": Fault(
        "attention", "simd_scores.h", "others = V::add(others, second);", ""
    ),
    "weights of pairs without a shift": Fault(
        "attention", "simd_scores.h", "V::splat(-kLog2OfE * shift)", "V::splat(0.0f)"
    ),
    "weights of the first values for all": Fault("attention", "simd_steps.h", "= scores + key;", "= scores;"),
    "columns of the last values alone": Fault(
        "attention",
        "simd_steps.h",
        "V::load(outputs + head * head_dim + i * V::kLanes);\n  }",
        "V::splat(0.0f);\n  }",
    ),
    "the last key twice": Fault(
        "attention", "simd_steps.h", "std::fill(of_head + count, of_head + whole_vectors<V>(count), kNoScore);", ""
    ),
    "sums that are not made to fit": Fault(
        "attention", "simd_prompts.h", "factor = std::exp(before - largest);", "factor = 1;"
    ),
    "the bias of the first head": Fault("attention", "attention.cc", "kv_head * group() * in_.bias_head_stride", "0"),
    "no sinks in steps": Fault(
        "attention", "attention.cc", "? std::exp(in_.sinks[head] - largest) : 0.0f", "? 0.0f : 0.0f"
    ),
    "keys that are not rotated": Fault(
        "attention", "attention.cc", "rotate(rotation, in_.keys", "rotate({rotation.head_dim}, in_.keys"
    ),
    "a block of queries at another place": Fault(
        "attention", "self_attention.cc", "group(), width, first,", "group(), width, 0,"
    ),
    "padding that is no zero": Fault(
        "attention", "self_attention.cc", "int padding = last;", "int padding = last + 1;"
    ),
    "keys that are read as values": Fault("attention", "self_attention.cc", "in_.values + token", "in_.keys + token"),
    "the sinks of the first heads": Fault(
        "attention", "self_attention.cc", "? in_.sinks + kv_head * group()", "? in_.sinks"
    ),
    "a variance without the mean": Fault(
        "gate",
        "simd_gate.h",
        "off = V::subtract(V::load(sum + i), V::splat(mean))",
        "off = V::load(sum + i)",
    ),
    "the bias of a product for other outputs": Fault(
        "gate", "quantized_linear.cc", "bias_.get() + first", "bias_.get()"
    ),
    "a convolution whose activation is of half the sum": Fault(
        "recurrent", "simd_recurrent.h", "all.silu ? silu<V>(sum)", "all.silu ? sigmoid<V>(sum)"
    ),
    "a convolution of the last tap alone": Fault(
        "recurrent", "simd_recurrent.h", "left), sum);", "left), V::splat(0.0f));"
    ),
    "a state that keeps what a token of padding has": Fault(
        "recurrent", "simd_recurrent.h", "!head_.mask[token]; ++token", "false; ++token"
    ),
    "a state that is returned without its decays": Fault(
        "recurrent", "simd_recurrent.h", "if (decayed_ != 1) decay_all();", ""
    ),
    "decays that become too small": Fault(
        "recurrent", "simd_recurrent.h", "if (!(decayed_ >= kLeastDecayed)) decay_all();", ""
    ),
    "a correction by what the state was before its decay": Fault(
        "recurrent", "simd_recurrent.h", "V::multiply(V::splat(decay), known_[each])", "known_[each]"
    ),
    "a correction by what the state of another scale has": Fault(
        "recurrent", "simd_recurrent.h", "V::multiply(known[each], V::splat(decayed_))", "known[each]"
    ),
    "the next token's key for this one": Fault(
        "recurrent", "simd_recurrent.h", "V::splat(of_key[i]), by_query", "V::splat(of_next[i]), by_query"
    ),
    "an output without its scale": Fault("recurrent", "simd_recurrent.h", "head_.scale * decayed_", "decayed_"),
    "columns of another state": Fault(
        "recurrent",
        "simd_recurrent.h",
        "head_.columns * sizeof(float));\n    }\n  }\n\n private",
        "kStateColumns * sizeof(float));\n    }\n  }\n\n private",
    ),
    "a softplus of large numbers": Fault(
        "recurrent", "simd_gate.h", "V::multiply_add(s, p, relu<V>(x))", "V::multiply(s, p)"
    ),
    "numbers behind the last": Fault(
        "recurrent",
        "simd_gate.h",
        "load_or_zeros<V>(x + i, count - i)), count - i);",
        "load_or_zeros<V>(x + i, count - i)), V::kLanes);",
    ),
    "a product whose tail has no bias": Fault("gate", "simd_gate.h", "finish(padded, bias + i);", ""),
    "a bias behind the activation": Fault(
        "gate",
        "simd_gate.h",
        "kActivation(V::add(V::load(to), V::load(from)))",
        "V::add(kActivation(V::load(to)), V::load(from))",
    ),
    "a norm without its bias": Fault(
        "gate",
        "simd_gate.h",
        "bias == nullptr ? V::splat(0.0f) : V::load(bias + i)",
        "V::splat(0.0f)",
    ),
    "keys without their scales": Fault(
        "attention",
        "attention.cc",
        "if constexpr (kHasChannelScales) multiply(to, scales_of(in_.keys_cache, head / group()));",
        "",
    ),
    "values with the scales of the first head": Fault(
        "attention", "attention.cc", "scales_of(in_.values_cache, joined.kv_head)", "scales_of(in_.values_cache, 0)"
    ),
    "halves that are rounded before they are rotated": Fault(
        "attention",
        "attention.cc",
        "round(rotated, in_.keys_cache, head, key);",
        "round(in_.keys + from, in_.keys_cache, head, key);",
    ),
    "halves that are read as bfloat16": Fault(
        "attention",
        "half.h",
        "const std::uint32_t exponent = half & 0x7c00u;",
        "return std::bit_cast<float>(std::uint32_t{half} << 16); const std::uint32_t exponent = half & 0x7c00u;",
        compiled="level_plain.cc",
    ),
    "the first of four keys for all": Fault(
        "attention", "simd_steps.h", "std::min(4 * four + key, count - 1)", "std::min(4 * four, count - 1)"
    ),
    # AVX-512 clips numbers when it narrows them.
    "integers that are not clipped": Fault(
        "attention", "simd_stored.h", "V::min(scaled, V::splat(127.0f))", "scaled", compiled="level_plain.cc"
    ),
    "tokens that are evicted too early": Fault(
        "windowed_attention",
        "attention.cc",
        "stored(valid(row)) - in_.new_tokens < seen_of_past(row)",
        "stored(valid(row)) < in_.new_tokens",
    ),
    "the bias of tokens that were evicted": Fault(
        "windowed_attention", "attention.cc", "bias += evicted + row", "bias += row"
    ),
    "a window of tokens before the last ones": Fault(
        "windowed_attention", "attention.cc", "std::copy_n(end - tokens * d,", "std::copy_n(end - tokens * d - d,"
    ),
    "a value that is paired with itself": Fault(
        "attention", "simd_prompts.h", "V::load(next + i)", "V::load(values + i)", only=PAIRS
    ),
    "pairs of the first half of a key": Fault(
        "attention", "simd_prompts.h", "V::load(from + V::kLanes)", "V::load(from)", only=PAIRS
    ),
    "queries of other rows in pairs": Fault(
        "attention", "simd_prompts.h", "queries + row * of_queries", "queries", only=PAIRS
    ),
    "scores of bytes without the product with the mean": Fault(
        "attention",
        "simd_quads.h",
        "V::multiply_add(V::to_floats(sums[each][i]), of_both, mean)",
        "V::multiply(V::to_floats(sums[each][i]), of_both)",
        only=REGISTERS,
    ),
    "queries of bytes that keep their 128": Fault(
        "attention", "simd_quads.h", "V::splat(V::kByteBias - 128)", "V::splat(0)", only=REGISTERS
    ),
    "bytes with the scale of another key": Fault(
        "attention", "simd_quads.h", "to.scales[first + key] =", "to.scales[first] =", only=REGISTERS
    ),
    "bytes of the first block of a window without a mean": Fault(
        "attention", "simd_prompts.h", "if (first > 0) mean_of_keys", "if (first < 0) mean_of_keys", only=REGISTERS
    ),
    "bytes that later tokens change, by a mean of their own block": Fault(
        "attention",
        "simd_prompts.h",
        "quad_keys<V>(of_keys, keys, head_dim, matrices.keys);",
        "mean_of_keys<V>(of_keys + (keys - kKeysAtOnce) * head_dim, head_dim, matrices.keys.mean);"
        "quad_keys<V>(of_keys, keys, head_dim, matrices.keys);",
        only=REGISTERS,
    ),
    "a mean that is not finite": Fault(
        "attention", "simd_quads.h", "std::isfinite(mean[i]) ? mean[i] : 0.0f", "mean[i]", only=REGISTERS
    ),
    "weights of bytes with the factor of another row": Fault(
        "attention",
        "simd_quad_values.h",
        "V::splat(factors.now[row + each])",
        "V::splat(factors.now[row])",
        only=REGISTERS,
    ),
    "weights of bytes before which sums keep their largest score": Fault(
        "attention", "simd_quad_values.h", "V::multiply(V::load(output), before)", "V::load(output)", only=REGISTERS
    ),
    "weights of bytes that are rounded down": Fault(
        "attention", "simd_quad_values.h", "(i >> bit & 1) << (7 - bit)", "0", only=REGISTERS
    ),
    "weights of bytes that depend on the block of rows": Fault(
        "attention", "simd_quad_values.h", "all.position * all.heads + row", "row", only=REGISTERS
    ),
    "weights of bytes of other keys": Fault(
        "attention", "simd/avx512.h", "kOrder[16] = {0, 4, 8, 12,", "kOrder[16] = {4, 0, 8, 12,", only=REGISTERS
    ),
    "weights of bytes of other keys in halves of vectors": Fault(
        "attention", "simd/avx2_vnni.h", "_mm256_setr_epi32(0, 4, 1, 5,", "_mm256_setr_epi32(4, 0, 1, 5,", BYTES
    ),
    "weights of bytes that are powers of another number": Fault(
        "attention", "simd/avx2_vnni.h", "_mm256_set1_epi16(0x0f07)", "_mm256_set1_epi16(0x0f0f)", BYTES
    ),
    "values of bytes whose words lack their sign": Fault(
        "attention", "simd/avx2_vnni.h", "_mm256_slli_epi32(low(third), 16)", "_mm256_slli_epi32(third, 16)", BYTES
    ),
    "words of other columns in halves of vectors": Fault(
        "attention", "simd/avx2_vnni.h", "(low, high, 0x20)", "(low, high, 0x30)", BYTES
    ),
    "weights of bytes without a sign that a score is none": Fault(
        "attention", "simd_quad_values.h", "all.bias != nullptr) + nan", "all.bias != nullptr)", only=REGISTERS
    ),
    "weights of bytes without a sign that a bias is none": Fault(
        "attention", "simd_quad_values.h", "std::isnan(of_all) ? of_all", "false ? of_all", only=REGISTERS
    ),
    "values of bytes with the scale of another channel": Fault(
        "attention", "simd_quad_values.h", "to.scales[i + channel] = scale", "to.scales[i] = scale", only=REGISTERS
    ),
    "values of bytes of the key before": Fault(
        "attention", "simd_quad_values.h", "rounded(key + 1)", "rounded(key)", only=REGISTERS
    ),
    "values of bytes that later tokens change": Fault(
        "attention", "simd_prompts.h", "weighed && by_all", "weighed", only=REGISTERS
    ),
    "steps that round as prompts do": Fault(
        "attention", "attention.h", "new_tokens >= 64 && ", "", "attention.cc", only=REGISTERS
    ),
    "prompts that never round": Fault(
        "attention", "attention.h", "keys > 256", "keys < 0", "attention.cc", only=REGISTERS
    ),
    "texts and pictures that never round": Fault(
        "attention", "self_attention.cc", "shape_.rounds(in_.new_tokens, valid)", "false", only=REGISTERS
    ),
    "heads that are widened by what was in memory": Fault(
        "attention", "self_attention.cc", "std::fill(to + shape_.head_dim, to + width_, 0.0f);", "", only=REGISTERS
    ),
    "texts that round although they are to keep float32": Fault(
        "attention", "self_attention.cc", "shape_.rounds(in_.new_tokens, valid)", "valid > 256", only=REGISTERS
    ),
    "integers with the scale of the first key": Fault(
        "attention",
        "simd_steps.h",
        "scale_behind(integers + key * width, head_dim)",
        "scale_behind(integers, head_dim)",
    ),
    "integers of a prompt with the scale of the key before": Fault(
        "attention",
        "simd_stored.h",
        "V::splat(scale_behind(from, head_dim))",
        "V::splat(scale_behind(at == to ? from : from - head_dim - 4, head_dim))",
    ),
    "values with the scales of keys": Fault(
        "attention",
        "simd_steps.h",
        "multiply_scales<V, kHeads>(values, head_dim, count, scores);",
        "multiply_scales<V, kHeads>(keys, head_dim, count, scores);",
    ),
    "integers that are copied without their scales": Fault(
        "windowed_attention",
        "attention.cc",
        "shape_.kv_heads) * width(), all",
        "shape_.kv_heads) * shape_.head_dim, all",
    ),
    "words of graphs that are to keep float32": Fault(
        "attention", "simd_steps.h", "rows.may_round && fits", "fits", only=REGISTERS
    ),
    "words of other columns": Fault(
        "attention", "simd_words.h", "V::unzip(sums[head][i], sums[head][i + 1]);", "", only=REGISTERS
    ),
    "words of a value that is paired with itself": Fault(
        "attention", "simd_words.h", "key + 1 < keys ? values + width : values", "values", only=REGISTERS
    ),
    "words of the first half of a query": Fault(
        "attention",
        "simd_words.h",
        "V::load_words(queries + head * head_dim + i)",
        "V::load_words(queries + head * head_dim)",
        only=REGISTERS,
    ),
    "sums of words with the step of another head": Fault(
        "attention", "simd_words.h", "V::splat(steps[head])", "V::splat(steps[0])", only=REGISTERS
    ),
    "later blocks of a part with the bias of its first": Fault(
        "attention", "self_attention.cc", "first * in_.bias_token_stride", "(first % at_once) * in_.bias_token_stride"
    ),
    "later blocks of a part with its first queries": Fault(
        "attention", "self_attention.cc", "in_.queries + token(row, first + index)", "in_.queries + token(row, index)"
    ),
    "a part that is left out": Fault(
        "attention",
        "attention.cc",
        "part < joined.parts(); ++part) {\n        const",
        "part + 1 < joined.parts(); ++part) {\n        const",
    ),
    "parts of one head over those of another": Fault(
        "attention", "attention.cc", "(head.first_part + part) * floats_of_part()", "part * floats_of_part()"
    ),
    "many heads of which one has no sums": Fault(
        "attention",
        "attention.cc",
        "attend_part(heads[i], part, next, sums);",
        "if (i) attend_part(heads[i], part, next, sums);",
    ),
    "sums of a unit that are not added behind the last block": Fault(
        "quantized_linear",
        "simd_gemm.h",
        "is_centred() ? add_sums<true>(sums_.count) : add_sums<false>(sums_.count);",
        "",
        UNIT,
    ),
    "a block of a unit times the activations of the next": Fault(
        "quantized_linear", "simd_gemm.h", "multiply_last(index - 1, rows)", "multiply_last(index, rows)", UNIT
    ),
    "weights of a unit that stay 16 times as large": Fault(
        "quantized_linear", "simd_gemm.h", "V::splat(1.0f / 16)", "V::splat(1.0f)", UNIT
    ),
    "sums of a unit without the zero point": Fault(
        "quantized_linear", "simd_gemm.h", "V::splat(start_of(block.zero_points, offset))", "V::splat(0)", UNIT
    ),
    "the second tile of a unit times the rows of the first": Fault(
        "per_token_linear",
        "tile_products.h",
        "rows + product.of_tile * product.row_stride",
        "rows",
        UNIT,
    ),
    "words of a unit that are multiplied twice": Fault(
        "per_token_linear", "tile_products.h", "columns += product.words_at_once * to_word;", "", UNIT
    ),
    "values behind the last key that are not zero": Fault(
        "attention", "simd_prompts.h", "std::fill(pairs, pairs + behind, 0.0f);", "", UNIT
    ),
    "sums over keys that a unit forgets": Fault(
        "attention", "tile_products.h", "if constexpr (kAdds) {", "if constexpr (false) {", UNIT
    ),
    "a unit that is not told of other words": Fault(
        "attention", "simd_prompts.h", "if (words != words_) T::configure", "if (words_ == 0) T::configure", UNIT
    ),
}
"""Faults that the tests in C++ must find."""


@pytest.mark.parametrize("name", FAULTS)
def test_faults_change_code_that_is_there(name):
    """The tests that build the faults are slow; a changed line of C++ that no fault finds any more is seen here."""
    fault = FAULTS[name]
    assert (KERNELS / "src" / fault.file).read_text().count(fault.right) >= 1


@pytest.fixture(scope="module")
def level(built):
    """Return the file of the SIMD level that the programs test first here: a fault in a header is planted in it.

    Not that of AMX, which leaves most products to a unit of matrix tiles.
    """
    said = subprocess.run([built / "test_gate"], capture_output=True, text=True, check=True).stdout
    name = next(name for name in re.findall(r"^(\S+) is right$", said, re.MULTILINE) if name != "amx")
    return {name: file for file, name in LEVELS.items()}.get(name, f"level_{name.replace('-', '_')}.cc")


def run(program, *levels):
    """Run a program of the tests for all levels, or for those that are named."""
    return subprocess.run([program, *levels], capture_output=True, text=True, check=False, timeout=300)


def level_of(file):
    """Return the name of the level that a file has, in a list that is empty if it has none."""
    return [LEVELS.get(file, file[6:-3].replace("_", "-"))] if file.startswith("level_") else []


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(built, level, tmp_path, name):
    fault = FAULTS[name]
    if fault.only and level not in fault.only:
        pytest.skip(f"2026-11-29: this processor has none of {', '.join(fault.only)}")
    source = copy_of_sources(tmp_path, (fault.file, fault.right, fault.wrong))
    file = fault.compiled_at(level)
    program = link_program(built, fault.program, [compile_file(built, source, file)], tmp_path)
    # A fault in the file of a level is in no other level.
    done = run(program, *level_of(file))
    # A write beyond an array may end the program by the allocator's own check, before the test's.
    assert done.returncode == -signal.SIGABRT or (done.returncode == 1 and " is false: " in done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("program", sorted({fault.program for fault in FAULTS.values()}))
def test_the_same_files_without_a_fault_pass(built, level, tmp_path, program):
    """A program that failed for the way in which it is built here would find every fault."""
    source = copy_of_sources(tmp_path)
    files = {fault.compiled_at(level) for fault in FAULTS.values() if fault.program == program}
    objects = [compile_file(built, source, file) for file in sorted(files)]
    done = run(link_program(built, program, objects, tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_race_in_the_team_is_found(can_build, tmp_path):
    """Chunks that are taken without an atomic exchange run twice, which the test sees, or waits for them forever."""
    exchange = "from.chunks.compare_exchange_weak(chunks, left, std::memory_order_acq_rel, std::memory_order_acquire)"
    source = copy_of_sources(tmp_path, ("team.cc", exchange, "(from.chunks = left, true)"))
    program = tmp_path / "test_team"
    line = [compiler(), "-std=c++20", "-O1", "-fsanitize=thread", "-pthread", f"-I{source}", "-o", program]
    subprocess.run([*line, source / "team.cc", KERNELS / "tests/test_team.cc"], check=True)
    try:
        found = subprocess.run([program], capture_output=True, check=False, timeout=20).returncode != 0
    except subprocess.TimeoutExpired:
        found = True  # more chunks were counted than there are
    assert found
