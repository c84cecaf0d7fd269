"""Build the wheels of edgeformer-kernels for every platform, on this machine, and check each library.

    python tools/kernel_wheels.py build/wheels [--platform win_arm64 …]

The compiler is the clang of PyPI's `ziglang`, which has the headers and libraries of every platform; pip installs it
into a folder of its own that goes again. Of each library is read for which processor and system it is, which functions
it shows, and which libraries and symbols it asks for: C libraries alone, and no glibc newer than its tag says. Those
for this machine are opened; those for ARM by qemu-aarch64 with Debian's C library for ARM, where both are installed,
and those for Windows on x86-64 by wine, where it is.
"""

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "kernels" / "backend"))

import edgeformer_kernels_build as backend  # noqa: E402 – it is not a package that is installed

MOST_BYTES = 3 << 20
"""The largest wheel."""

FUNCTIONS = (b"RegisterCustomOps", b"edgeformer_kernels_describe")
"""The functions that every library shows."""

SYSTEM_LIBRARIES = {
    "linux": re.compile(r"(lib(c|m|pthread|dl)\.so(\.\d)?|ld-linux-(x86-64|aarch64)\.so\.\d)$"),
    "macos": re.compile(r"/usr/lib/libSystem\.B\.dylib$"),
    "windows": re.compile(r"(KERNEL32|ntdll|api-ms-win-crt-[a-z0-9-]+)\.dll$", re.IGNORECASE),
}
"""The libraries that it may need: those of the system that have no version of their own."""

OPENER = """#include <stdio.h>
#ifdef _WIN32
#include <windows.h>
#define OPEN(file) (void*)LoadLibraryA(file)
#define FIND(library, name) (void*)GetProcAddress((HMODULE)library, name)
#else
#include <dlfcn.h>
#define OPEN(file) dlopen(file, RTLD_NOW)
#define FIND dlsym
#endif
int main(int count, char** words) {
  void* library = OPEN(words[1]);
  if (!library) return fprintf(stderr, "it does not open"), 1;
  const char* (*describe)(void) = (const char* (*)(void))FIND(library, "edgeformer_kernels_describe");
  return !describe || !FIND(library, "RegisterCustomOps") || puts(describe()) < 0;
}
"""
"""A program in C that opens the library and has it describe itself."""


def read_elf(data: bytes) -> tuple[str, list[str]]:
    """Return the processor of a library for Linux, and the libraries that it needs."""
    (machine,) = struct.unpack_from("<H", data, 18)
    at, size, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQII", data, at + index * size) for index in range(count)]
    dynamic = next(each for each in sections if each[1] == 6)
    strings = sections[dynamic[6]][4]
    needed = []
    for entry in range(dynamic[4], dynamic[4] + dynamic[5], 16):
        tag, value = struct.unpack_from("<QQ", data, entry)
        if tag == 1:
            needed.append(_text(data, strings + value))
    return {62: "x86_64", 183: "aarch64"}[machine], needed


def read_macho(data: bytes) -> tuple[str, list[str]]:
    """Return the processor of a library for macOS, and the libraries that its load commands name."""
    magic, machine, _, _, commands = struct.unpack_from("<5I", data, 0)
    assert magic == 0xFEEDFACF
    at, needed = 32, []
    for _ in range(commands):
        command, size = struct.unpack_from("<II", data, at)
        if command in (0xC, 0x80000018):  # a library, which must or may be there
            needed.append(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        at += size
    return {0x01000007: "x86_64", 0x0100000C: "aarch64"}[machine], needed


def read_pe(data: bytes) -> tuple[str, list[str]]:
    """Return the processor of a library for Windows, and the libraries in its table of imports."""
    (head,) = struct.unpack_from("<I", data, 60)
    machine, count = struct.unpack_from("<HH", data, head + 4)
    (optional,) = struct.unpack_from("<H", data, head + 20)
    sections = [struct.unpack_from("<IIII", data, head + 24 + optional + 40 * each + 8) for each in range(count)]

    def offset(address: int) -> int:
        return next(raw + address - first for size, first, _, raw in sections if first <= address < first + size)

    at, needed = offset(struct.unpack_from("<I", data, head + 24 + 120)[0]), []
    while name := struct.unpack_from("<I", data, at + 12)[0]:
        needed.append(_text(data, offset(name)))
        at += 20
    return {0x8664: "x86_64", 0xAA64: "aarch64"}[machine], needed


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def check(wheel: Path, tag: str) -> str:
    """Return what a wheel's library is, in a line. Raises ClickException where it is not what its tag says."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith((".so", ".dylib", ".dll")))
        data = archive.read(name)
    processor, system = re.split(r"[-.]", backend.PLATFORMS[tag])[:2]
    found, needed = {"linux": read_elf, "macos": read_macho, "windows": read_pe}[system](data)
    versions = {(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", data)}
    wrong = [
        *([f"is for {found}"] if found != processor else []),
        *(f"lacks {function.decode()}" for function in FUNCTIONS if function not in data),
        *(f"needs {library}" for library in needed if not SYSTEM_LIBRARIES[system].match(library)),
        *(["needs a newer glibc"] if max(versions, default=(0, 0)) > (2, 28) else []),
        *([f"has {wheel.stat().st_size:,} bytes"] if wheel.stat().st_size > MOST_BYTES else []),
    ]
    if wrong:
        raise click.ClickException(f"{wheel.name}: the library {', '.join(wrong)}")
    glibc = f", glibc {'.'.join(map(str, max(versions)))}" if versions else ""
    return f"{wheel.stat().st_size / 1e6:.2f} MB, {found}{glibc}, needs {', '.join(needed)}"


def runner(target: str) -> list[str] | None:
    """Return the command that runs a program for a platform on this machine; None where there is none."""
    processor, system = re.split(r"[-.]", target)[:2]
    if sys.platform != "linux" or not (system == "windows" or "-linux-gnu" in target):
        return None
    if system == "windows":
        wine = shutil.which("wine64", path=f"{os.environ['PATH']}:/usr/lib/wine")
        return [wine] if wine is not None and processor == os.uname().machine == "x86_64" else None
    if processor == os.uname().machine:
        return []
    emulator, libraries = f"qemu-{processor}", f"/usr/{processor}-linux-gnu"
    return [emulator, "-L", libraries] if shutil.which(emulator) and Path(libraries).is_dir() else None


def opened(wheel: Path, tag: str, compiler: list[str]) -> str:
    """Open a library on this machine, or by an emulator; return how, and what it says of itself."""
    target = backend.PLATFORMS[tag]
    emulator = runner(target)
    if emulator is None:
        return "not opened here"
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            library = archive.extract(
                next(each for each in archive.namelist() if each.endswith((".so", ".dll"))), folder
            )
        source, program = Path(folder) / "open.c", Path(folder) / "open.exe"
        source.write_text(OPENER)
        link = [] if "windows" in target else ["-ldl"]
        subprocess.run([compiler[0], "cc", "-target", target, str(source), *link, "-o", str(program)], check=True)
        # A folder of wine's own that goes again; it says much about graphics that it does not find.
        env = os.environ | {"WINEPREFIX": f"{folder}/wine", "WINEDEBUG": "-all", "DISPLAY": ""}
        line = [*emulator, str(program), library]
        done = subprocess.run(line, check=False, capture_output=True, text=True, env=env)
    levels = re.search(r'"levels": (\[[^]]*\])', done.stdout)
    if done.returncode or levels is None:
        raise click.ClickException(f"{wheel.name}: {' '.join(line)} ended with {done.returncode}: {done.stderr}")
    return f"opened {'by ' + Path(emulator[0]).name if emulator else 'here'}: {levels[1]}"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--platform", "platforms", multiple=True, type=click.Choice(list(backend.PLATFORMS)))
def main(folder: Path, platforms: tuple[str, ...]) -> None:
    """Write the wheels into FOLDER."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["EDGEFORMER_KERNELS_REQUIRED"] = "1"
    with tempfile.TemporaryDirectory() as packages:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", packages, backend.ZIG], check=True)
        sys.path.insert(0, packages)
        for tag in platforms or backend.PLATFORMS:
            os.environ["EDGEFORMER_KERNELS_PLATFORM"] = tag
            start = time.monotonic()
            wheel = folder / backend.build_wheel(folder)
            seconds = time.monotonic() - start
            line = f"{check(wheel, tag)}, {opened(wheel, tag, backend.zig())}, {seconds:.0f} s"
            click.echo(f"{wheel.name}: {line}")


if __name__ == "__main__":
    main()
