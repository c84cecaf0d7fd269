"""The house can be drawn: rooms of a dozen files on few floors, and kinds and providers that are values.

A room is what stands in a folder: a folder below it, or a file. A room is on the floor above the highest room that it
imports. The limits are those of the last redesign; a change that breaks one needs a better drawing, not a higher limit.
Limits on lines are what the product has today where that is above the goal beside it: they may only go down.
"""

import ast
import re
from pathlib import Path

import pytest
from test_architecture import ROOT, files, imports_of_modules

MOST_ENTRIES = MOST_FILES = 12
"""Entries at the top of a house, and files in a room."""
MOST_FLOORS = 10
HOUSES = {"edgeformer.runtime": ROOT / "runtime", "edgeformer.server": ROOT / "edgeformer" / "server"}
PRODUCT = ("edgeformer", "export", "runtime")

MOST_MODULES = 13
"""Modules in a folder of the product or of tools, beside its `__init__`."""
TABLES = {
    "edgeformer/families": "a file per model_type",
    "edgeformer/ops": "a file per op",
}
"""Folders of any number of files, since each file is an entry of one kind under a name that is known elsewhere."""

CONFIGS = r"(?:DecoderConfig|EncoderConfig|Seq2SeqConfig)\b"
FEW = {
    "asks for the kind of a config": (rf"isinstance\(.*{CONFIGS}|case {CONFIGS}", 15),
    "compares a provider with a string": (
        r"""[!=]= "(?:cpu|cuda)"|"(?:cpu|cuda)" [!=]=|in \("(?:cpu|cuda)"|case "(?:cpu|cuda)\"""",
        2,  # devices that clients name in their own files
    ),
    "takes any keyword": (r"\*\*\w+: Any", 13),
}
"""Limits by what a line does: the pattern that finds such lines, and how many of them the product may have."""


def room_of(module: str, house: str) -> str:
    return module.removeprefix(f"{house}.").split(".")[0]


def rooms(house: str, graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The rooms of a house, and the rooms that each imports."""
    inside = {module: targets for module, targets in graph.items() if module.startswith(f"{house}.")}
    arrows: dict[str, set[str]] = {room_of(module, house): set() for module in inside}
    for module, targets in inside.items():
        room = room_of(module, house)
        arrows[room] |= {room_of(target, house) for target in targets & inside.keys()} - {room}
    return arrows


def floors(arrows: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each room, from 0; raises AssertionError for rooms that import each other in a circle."""
    found: dict[str, int] = {}
    while len(found) < len(arrows):
        ready = {room for room, below in arrows.items() if room not in found and below <= found.keys()}
        assert ready, f"a circle leads through {sorted(arrows.keys() - found.keys())}"
        found |= {room: max((found[each] + 1 for each in arrows[room]), default=0) for room in ready}
    return found


@pytest.mark.parametrize("house", HOUSES)
def test_a_house_has_few_rooms(house):
    entries = [path.name for path in HOUSES[house].iterdir() if path.name != "__pycache__"]
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


@pytest.mark.parametrize("house", HOUSES)
def test_a_room_has_few_files(house):
    folders = [HOUSES[house], *(path for path in HOUSES[house].rglob("*") if path.is_dir())]
    crowded = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in crowded.items() if count > MOST_FILES} == {}


@pytest.mark.parametrize("top", [*PRODUCT, "tools"])
def test_a_folder_has_few_modules(top):
    folders = [ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir())]
    counts = {
        folder.relative_to(ROOT).as_posix(): len({*folder.glob("[!_]*.py"), *folder.glob("_[!_]*.py")})
        for folder in folders
    }
    assert {name: count for name, count in counts.items() if count > MOST_MODULES and name not in TABLES} == {}


@pytest.mark.parametrize("house", HOUSES)
def test_rooms_stand_on_few_floors(house):
    assert max(floors(rooms(house, imports_of_modules())).values()) < MOST_FLOORS


def test_a_circle_of_rooms_would_be_seen():
    assert floors({"a": {"b"}, "b": set()}) == {"a": 1, "b": 0}
    with pytest.raises(AssertionError, match=r"a circle leads through \['a', 'b'\]"):
        floors({"a": {"b"}, "b": {"a"}, "c": set()})


@pytest.mark.parametrize("what", FEW)
def test_few_lines_of_the_product(what):
    pattern, most = FEW[what]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in PRODUCT
        for path in files(folder)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert len(found) <= most, f"{len(found)} lines: {' '.join(found)}"


SHARED = {"Answer", "Kind"}
"""Names that two classes of the runtime still share."""


def class_names(folder: Path) -> list[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    return [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("house", HOUSES)
def test_a_class_has_a_name_of_its_own(house):
    names = [name for name in class_names(HOUSES[house]) if not name.startswith("_") and name not in SHARED]
    assert sorted(names) == sorted(set(names))


def test_a_file_of_tests_has_a_name_of_its_own():
    """pytest imports files of tests by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


LONGEST_TEST_NAME = 60
"""Characters. A name says in a short sentence what holds, and is found by a search for it."""


def test_names_of_tests_are_short_sentences():
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > LONGEST_TEST_NAME
    ]
    assert found == []
