"""Build the wheel of edgeformer-kernels: a backend of PEP 517 that needs nothing but a clang.

It takes a clang of the system that is new enough, or the one that PyPI's package `ziglang` brings. Where neither can be
had, the wheel has no library, and edgeformer runs without kernels. Variables of the environment:

    CXX                                a compiler that is taken as it is
    EDGEFORMER_KERNELS_PLATFORM        a tag of PLATFORMS: zig builds the wheel for that platform
    EDGEFORMER_KERNELS_REQUIRED=1      a wheel without the library is an error
"""

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = PROJECT["name"].replace("-", "_")

ZIG = "ziglang>=0.17,<0.18"
"""The requirement of a machine without a clang that is new enough."""

OLDEST_CLANG = {"clang": 19, "Apple clang": 17}
"""The oldest versions that are taken; Apple counts otherwise."""

PLATFORMS = {
    "manylinux_2_28_x86_64": "x86_64-linux-gnu.2.28",
    "manylinux_2_28_aarch64": "aarch64-linux-gnu.2.28",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_13_0_x86_64": "x86_64-macos.13.0",
    "macosx_13_0_arm64": "aarch64-macos.13.0",
    "win_amd64": "x86_64-windows-gnu",
    "win_arm64": "aarch64-windows-gnu",
}
"""Tags of wheels, and what zig calls these platforms."""

PROCESSORS = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
"""Names of the processors that have SIMD levels, and what clang calls them."""


def _levels():
    """Read from CMakeLists.txt which files are compiled for more than the baseline of a processor, and their flags."""
    x86_64, aarch64 = (ROOT / "CMakeLists.txt").read_text().split("elseif(CMAKE_SYSTEM_PROCESSOR", 1)
    pattern = re.compile(r'src/(level_\w+\.cc) PROPERTIES COMPILE_OPTIONS\s+"([^"]*)"')
    texts = {"x86_64": x86_64, "aarch64": aarch64}
    return {name: {file: flags.split(";") for file, flags in pattern.findall(text)} for name, text in texts.items()}


LEVELS = _levels()
"""The files of each processor that are compiled for more than its baseline, and their flags."""

FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-fvisibility=hidden", "-ffp-contract=off", "-g0")

TRIAL = "#include <span>\n#include <string>\n#include <thread>\nint main() { return std::thread().joinable(); }\n"
"""A program that compiles and links where a compiler has all that the library needs."""

STAND_IN = 'extern "C" { int RegisterCustomOps() { return 0; } int edgeformer_kernels_describe() { return 0; } }'
"""A library that is linked as ours is."""


def get_requires_for_build_wheel(config_settings=None):
    """Return what pip must install before it builds: zig, where there is no clang."""
    known = platform.machine().lower() in PROCESSORS and sys.platform in ("linux", "darwin", "win32")
    return [ZIG] if known and _clang() is None else []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the wheel, and return the name of its file."""
    files = {f"{NAME}/{path.name}": path.read_bytes() for path in (ROOT / NAME).glob("*.py")}
    tag = "any"
    try:
        library, data, tag = _build_library()
        files[f"{NAME}/{library}"] = data
    except (RuntimeError, OSError) as problem:
        if os.environ.get("EDGEFORMER_KERNELS_REQUIRED") == "1":
            raise
        sys.stderr.write(f"edgeformer runs without kernels, which cannot be built here: {problem}\n")
    info = f"{NAME}-{PROJECT['version']}.dist-info"
    pure = "true" if tag == "any" else "false"
    files[f"{info}/METADATA"] = _metadata()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: {pure}\nTag: py3-none-{tag}\n".encode()
    )
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = f"{NAME}-{PROJECT['version']}-py3-none-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    """Write the archive of the sources, and return the name of its file."""
    folder = f"{NAME}-{PROJECT['version']}"
    with tempfile.TemporaryDirectory() as made:
        info = Path(made) / "PKG-INFO"
        info.write_bytes(_metadata())
        with tarfile.open(Path(sdist_directory) / f"{folder}.tar.gz", "w:gz") as archive:
            archive.add(info, f"{folder}/PKG-INFO")
            for each in ("CMakeLists.txt", "README.md", "pyproject.toml", "backend", "cmake", NAME, "src", "tests"):
                archive.add(ROOT / each, f"{folder}/{each}", filter=lambda it: None if "__pycache__" in it.name else it)
    return f"{folder}.tar.gz"


def _metadata():
    fields = {
        "Metadata-Version": "2.4",
        "Name": PROJECT["name"],
        "Version": PROJECT["version"],
        "Summary": PROJECT["description"],
        "License-Expression": PROJECT["license"],
        "Requires-Python": PROJECT["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    head = "".join(f"{name}: {value}\n" for name, value in fields.items())
    return f"{head}\n{(ROOT / PROJECT['readme']).read_text(encoding='utf-8')}".encode()


def _digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _build_library():
    """Compile and link the library. Return its name, its bytes and the tag of its platform."""
    wanted, clang = os.environ.get("EDGEFORMER_KERNELS_PLATFORM"), _clang()
    if wanted is None and clang is not None:
        processor, system = PROCESSORS.get(platform.machine().lower()), sys.platform
        tag, compiler = re.sub(r"[^0-9a-zA-Z]", "_", sysconfig.get_platform()), [clang]
    else:
        tag = wanted or _tag_of_this_machine()
        processor, system = PLATFORMS[tag].split("-")[:2]
        # It would compile for the processor that it runs on, if it were not told.
        compiler = [*zig(), "-target", PLATFORMS[tag], "-mcpu=baseline"]
    levels = LEVELS.get(processor, {})
    others = {name for each in LEVELS.values() for name in each if name not in levels}
    sources = [path for path in sorted((ROOT / "src").rglob("*.cc")) if path.name not in others]
    flags = [*FLAGS, f"-I{ROOT / 'src'}", f'-DEDGEFORMER_KERNELS_VERSION="{PROJECT["version"]}"']
    threaded = [] if system.startswith("win") else ["-fPIC", "-pthread"]
    library = f"{NAME}.dll" if system.startswith("win") else f"lib{NAME}.{'so' if system == 'linux' else 'dylib'}"
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(1 + (os.cpu_count() or 1)) as threads:
        files = [*(path for path in sources if path.name.startswith("level_")), *_joined(sources, Path(made))]
        objects = [f"{made}/{path.stem}.o" for path in files]
        lines = [
            [*compiler, *flags, *threaded, *levels.get(path.name, ()), "-c", str(path), "-o", to]
            for path, to in zip(files, objects, strict=True)
        ]
        link = [*compiler, "-O3", "-shared", "-s"]
        if system == "linux":
            # A session that closes unloads the libraries of its options; the team's threads are still in this one.
            exports = f"-Wl,--version-script={ROOT / 'cmake' / 'exports.map'}"
            link += ["-pthread", "-Wl,-z,nodelete", exports]
            link += ["-static-libstdc++", "-static-libgcc"] if len(compiler) == 1 else []
        if len(compiler) > 1:  # zig compiles its C++ library when it links for the first time: half of all work
            first = Path(made) / "first.cc"
            first.write_text(STAND_IN)
            lines.insert(0, [*link, str(first), "-o", f"{made}/first"])
        list(threads.map(_run, lines))
        _run([*link, *objects, "-o", f"{made}/{library}"])
        return library, (Path(made) / library).read_bytes(), tag


def _joined(sources, folder):
    """Write one file for each folder of sources that are no SIMD levels: most of their time goes to headers."""
    joined = {}
    for path in sources:
        if not path.name.startswith("level_"):
            file = folder / f"{path.parent.name}.cc"
            joined[file] = f'{joined.get(file, "")}#include "{path.as_posix()}"\n'
    for file, text in joined.items():
        file.write_text(text)
    return list(joined)


def _run(line):
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}: {done.stderr[-2000:]}")


def zig():
    """Return the command of zig's C++ compiler. Raises RuntimeError without the package."""
    try:
        import ziglang
    except ImportError:
        raise RuntimeError(
            f"there is no clang {OLDEST_CLANG['clang']} or newer, and no package ziglang for {platform.machine()}"
        ) from None
    return [str(Path(ziglang.__file__).parent / ("zig.exe" if os.name == "nt" else "zig")), "c++"]


def _tag_of_this_machine():
    processor = PROCESSORS[platform.machine().lower()]
    if sys.platform == "linux":
        return f"{'manylinux_2_28' if platform.libc_ver()[0] == 'glibc' else 'musllinux_1_2'}_{processor}"
    arm, x86 = ("win_arm64", "win_amd64") if os.name == "nt" else ("macosx_13_0_arm64", "macosx_13_0_x86_64")
    return arm if processor == "aarch64" else x86


def _clang():
    """Return the path of a clang++ that is new enough and works, or None. The environment's CXX is taken as it is."""
    if os.environ.get("EDGEFORMER_KERNELS_PLATFORM") or sys.platform == "win32":
        return None
    if os.environ.get("CXX"):
        return shutil.which(os.environ["CXX"]) or os.environ["CXX"]
    names = [*(f"clang++-{version}" for version in range(40, OLDEST_CLANG["clang"] - 1, -1)), "clang++"]
    return next((path for path in map(shutil.which, names) if path is not None and _works(path)), None)


def _works(compiler):
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(Apple clang|clang) version (\d+)", said)
    if version is None or int(version[2]) < OLDEST_CLANG[version[1]]:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "trial.cc"
        source.write_text(TRIAL)
        line = [compiler, "-std=c++20", "-pthread", str(source), "-o", str(Path(folder) / "trial")]
        return subprocess.run(line, capture_output=True, check=False).returncode == 0
