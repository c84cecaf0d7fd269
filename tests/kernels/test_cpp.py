"""The C++ tests of kernels/, as they are and with sanitizers; and faults in the C++ code that they must find."""

import shutil
import subprocess
from pathlib import Path

import pytest
from build_kernels import KERNELS, build, compiler

TESTED = (
    "attention",
    "file_pages",
    "gate",
    "half",
    "panels",
    "per_token_linear",
    "quantized_linear",
    "team",
    "windowed_attention",
)
PROGRAMS = tuple(f"test_{name}" for name in TESTED)


def run(folder, program):
    return subprocess.run([folder / program], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_tests_in_cpp_pass(built, program):
    done = run(built, program)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_they_pass_with_sanitizers(built, sanitizer):
    folder = build(op=False, options=(f"-DEDGEFORMER_KERNELS_SANITIZER={sanitizer}",))
    for program in PROGRAMS:
        done = run(folder, program)
        assert done.returncode == 0, done.stderr[-4000:]


ROWS = "std::min(rows, (part + 1) * tiles / parts * tile);"
FAULTS = {
    "the scale of another token": ("simd_per_token.h", "x.scales[row + each]", "x.scales[row]"),
    "the bias of other outputs": ("simd_per_token.h", "finish.bias + column", "finish.bias"),
    "a gate that is not activated": (
        "simd_per_token.h",
        "V::multiply(activate(gate), up)",
        "V::multiply(gate, activate(up))",
    ),
    "an inverse instead of a division": (
        "simd_kernels.h",
        "V::divide(V::load(x + i), V::splat(step))",
        "V::multiply(V::load(x + i), V::splat(1.0f / step))",
    ),
    "signs that stay": ("panels.cc", "from[column] + without_sign", "from[column]"),
    "rows that no thread takes": (
        "per_token_linear.cc",
        "(chunk + 1) * rows / chunks - first",
        "(chunk + 1) * rows / chunks - first - chunk % 2",
    ),
    "a block that is dropped": (
        "simd_kernels.h",
        "block < panels.blocks(); ++block",
        "block + 1 < panels.blocks(); ++block",
    ),
    "a tail without its last number": ("simd_kernels.h", "i + j >= size ? 0.0f", "i + j + 1 >= size ? 0.0f"),
    "columns beyond the last": ("simd_kernels.h", "if (to == padded) std::", "if (to == nullptr) std::"),
    "halves of bytes that are not exchanged": (
        "panels.cc",
        "(word & 0x00f000f0) << 4 | (word & 0x0f000f00) >> 4",
        "(word & 0x0ff00ff0)",
    ),
    "a panel that is not packed": (
        "panels.cc",
        "panel < (chunk + 1) * panels / chunks",
        "panel + 1 < (chunk + 1) * panels / chunks",
    ),
    "a bias that bytes keep": ("panels.cc", "word ^ flipped", "word"),
    "stored panels of any length": ("panels.cc", "stored.size() != size", "stored.size() < sizeof header"),
    "stored panels of an old format": ("panels.cc", "header.version != kPanelsVersion || ", ""),
    "stored panels of other weights": ("panels.cc", "header.inputs != sizes.inputs || ", ""),
    "stored panels at any address": ("panels.cc", "(stored.data()) % kCacheLine != 0", "(stored.data()) == 0"),
    "memory without a file that is emptied": ("file_pages.cc", "inode != 0 && begin < end", "begin < end"),
    "zero points that are ignored": ("simd_kernels.h", "(zero_points == nullptr)", "(zero_points != nullptr)"),
    "rows that are left out": ("quantized_linear.cc", ROWS, f"std::max(row, {ROWS[:-1]} - 1);"),
    "scales that leave the range of halves": ("panels.cc", "std::ilogb(largest) - 14", "0 * std::ilogb(largest)"),
    "a number that is not finite": ("simd_kernels.h", "scale = step + nan;", "scale = step;"),
    "a window of one key more": ("attention_rows.h", "token + 1 - window;", "token - window;"),
    "keys of the future": ("attention_rows.h", "position + token + 1;", "position + token + 2;"),
    "the last key twice": ("simd_attention.h", "std::fill(of_head + keys, of_head + key, kNoScore);", ""),
    "sums that are not made to fit": ("simd_attention.h", "factor = std::exp(before - largest);", "factor = 1;"),
    "the bias of the first head": ("attention.cc", "kv_head * group() * in_.bias_head_stride", "0"),
    "no sinks in steps": ("attention.cc", "? std::exp(in_.sinks[head] - largest) : 0.0f", "? 0.0f : 0.0f"),
    "keys that are not rotated": ("attention.cc", "rotate(rotation, in_.keys", "rotate({rotation.head_dim}, in_.keys"),
    "a block of queries at another place": ("self_attention.cc", "group(), d, first,", "group(), d, 0,"),
    "padding that is no zero": ("self_attention.cc", "int padding = count;", "int padding = count + 1;"),
    "keys that are read as values": ("self_attention.cc", "in_.values + token", "in_.keys + token"),
    "the sinks of the first heads": ("self_attention.cc", "? in_.sinks + kv_head * group()", "? in_.sinks"),
    "a variance without the mean": (
        "simd_gate.h",
        "off = V::subtract(V::load(sum + i), V::splat(mean))",
        "off = V::load(sum + i)",
    ),
    "a norm without its bias": (
        "simd_gate.h",
        "bias == nullptr ? V::splat(0.0f) : V::load(bias + i)",
        "V::splat(0.0f)",
    ),
    "keys without their scales": (
        "attention.cc",
        "if constexpr (kIsInt8) multiply(to, scales_of(in_.keys_cache, head / group()));",
        "",
    ),
    "values with the scales of the first head": (
        "attention.cc",
        "scales_of(in_.values_cache, part.kv_head)",
        "scales_of(in_.values_cache, 0)",
    ),
    "integers that are not clipped": ("simd_attention.h", "V::min(scaled, V::splat(127.0f))", "scaled"),
    "tokens that are evicted too early": (
        "attention.cc",
        "stored(valid(row)) - in_.new_tokens < seen_of_past(row)",
        "stored(valid(row)) < in_.new_tokens",
    ),
    "the bias of tokens that were evicted": ("attention.cc", "bias += evicted + row", "bias += row"),
    "a window of tokens before the last ones": (
        "attention.cc",
        "std::copy_n(end - tokens * d,",
        "std::copy_n(end - tokens * d - d,",
    ),
    "a part that is left out": (
        "attention.cc",
        "i < end; ++i) {\n          const",
        "i + 1 < end; ++i) {\n          const",
    ),
}
"""Faults that the tests in C++ must find: the file, what is right, and what is wrong."""


@pytest.mark.slow
def test_they_pass_on_arm(built):
    tools = ("qemu-aarch64", "aarch64-linux-gnu-g++")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing or "clang" not in Path(compiler()).name:
        pytest.skip(
            f"2026-11-23: the kernels for ARM are built by clang and run by qemu; missing: {missing or 'clang'}"
        )
    toolchain = KERNELS / "cmake" / "aarch64-linux.cmake"
    folder = build(op=False, options=(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}",))
    for program in PROGRAMS:
        done = subprocess.run(["qemu-aarch64", folder / program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert program != "test_quantized_linear" or "neon-dotprod is right" in done.stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_change_code_that_is_there(fault):
    """The tests that build the faults are slow; a changed line of C++ that no fault finds any more is seen here."""
    file, right, _ = FAULTS[fault]
    assert (KERNELS / "src" / file).read_text().count(right) >= 1


def with_fault(folder, file, right, wrong):
    """A copy of kernels/ in which a file of src/ is changed."""
    source = shutil.copytree(KERNELS, folder / "kernels")
    text = (source / "src" / file).read_text()
    assert right in text
    (source / "src" / file).write_text(text.replace(right, wrong))
    return source


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(built, tmp_path, fault):
    file, right, wrong = FAULTS[fault]
    source = with_fault(tmp_path, file, right, wrong)
    folder = build(source, op=False)
    assert any(run(folder, program).returncode for program in PROGRAMS)


@pytest.mark.slow
def test_a_race_in_the_team_is_found(built, tmp_path):
    """Chunks that are taken without an atomic exchange run twice, which the test sees, or waits for them forever."""
    exchange = "from.chunks.compare_exchange_weak(chunks, left, std::memory_order_acq_rel, std::memory_order_acquire)"
    source = with_fault(tmp_path, "team.cc", exchange, "(from.chunks = left, true)")
    folder = build(source, op=False, options=("-DEDGEFORMER_KERNELS_SANITIZER=thread",))
    try:
        found = subprocess.run([folder / "test_team"], capture_output=True, check=False, timeout=20).returncode != 0
    except subprocess.TimeoutExpired:
        found = True  # more chunks were counted than there are
    assert found
