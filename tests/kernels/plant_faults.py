"""Plant a fault in a file of kernels/: compile that file alone, and link it before the library that is right."""

import json
import shlex
import shutil
import subprocess

from build_kernels import KERNELS, compiler


def copy_of_sources(folder, *changes):
    """Copy kernels/src into a folder. changes: each a file, what is right there, and what is wrong."""
    source = shutil.copytree(KERNELS / "src", folder / "src")
    for file, right, wrong in changes:
        text = (source / file).read_text()
        assert right in text
        (source / file).write_text(text.replace(right, wrong))
    return source


def compile_file(built, source, file, *, optimize=False):
    """Compile a file over a copy of the sources as CMake compiled the original, and return the object.

    file: one of kernels/src, or one of kernels/tests that includes what is there. optimize: as
    CMake does. For a program of the tests, optimising takes longer than it saves, but for levels whose vectors are
    loops: the tests of attention take 7 s with all levels optimised, and 50 with one of these two that is not.
    """
    commands = json.loads((built / "compile_commands.json").read_text())
    folder = KERNELS / ("src" if (KERNELS / "src" / file).exists() else "tests")
    command = next(each for each in commands if each["file"].endswith(f"/kernels/{folder.name}/{file}"))["command"]
    words = shlex.split(command)
    made = source / f"{file}.o"
    optimization = "-O3" if optimize else "-O1" if file.startswith("level_plain") else "-O0"
    words[words.index("-o") :] = [optimization, "-o", str(made), "-c"]
    words.append(str((source if folder.name == "src" else folder) / file))
    words.insert(1, f"-I{source}")
    subprocess.run(words, check=True, cwd=built)
    return made


def link_program(built, program, objects, folder, *options):
    """Link a program of the tests from objects, and from the library for all that they lack; return its path.

    options: for the compiler, where it builds for another processor.
    """
    test = built / f"CMakeFiles/test_{program}.dir/tests/test_{program}.cc.o"
    libraries = [built / "libtested_levels.a", built / "libkernels.a"]
    return _link([*options, *objects, test, *libraries], folder / f"test_{program}")


def link_library(built, objects, folder):
    """Link the library for onnxruntime likewise; return its path."""
    binding = sorted((built / "CMakeFiles/edgeformer_kernels.dir").rglob("*.o"))
    options = ["-shared", "-Wl,-z,nodelete", "-static-libstdc++", "-static-libgcc"]
    return _link([*objects, *binding, built / "libkernels.a", *options], folder / "libedgeformer_kernels.so")


def _link(words, to):
    subprocess.run([compiler(), *words, "-pthread", "-o", to], check=True)
    return to
