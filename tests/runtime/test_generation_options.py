"""Every surface of an option of generation equals what follows from its declaration; an error carries its field."""

import importlib.util
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from edgeformer.errors import RequestError
from edgeformer.options.generation import OPTIONS, GenerationOptions
from edgeformer.runtime import GenerationConfig

ROOT = Path(__file__).parent.parent.parent


def generator():
    spec = importlib.util.spec_from_file_location("generation_options", ROOT / "tools" / "generation_options.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_keywords_for_type_checkers_are_those_declared():
    tool = generator()
    source = tool.FILE.read_text(encoding="utf-8")
    assert tool.with_keywords(source) == source
    assert GenerationOptions.__annotations__.keys() == OPTIONS.keys()


def test_the_config_has_the_declared_fields_and_defaults():
    assert [field.name for field in fields(GenerationConfig)] == list(OPTIONS)
    assert all(field.default is OPTIONS[field.name].default is not MISSING for field in fields(GenerationConfig))
    assert all(f"    {name}: " in GenerationConfig.__doc__ for name in OPTIONS)


def test_an_option_that_is_declared_and_not_written_as_a_keyword_is_found():
    tool = generator()
    source = tool.FILE.read_text(encoding="utf-8")
    changed = source.replace(
        "    top_h: float = option(", "    top_new: float = option(0.0, 'New.')\n    top_h: float = option(", 1
    )
    assert "    top_new: float\n" in tool.with_keywords(changed) != changed


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.range])
def test_every_range_is_checked_and_the_error_has_its_field(name):
    with pytest.raises(RequestError, match=f"^{name} is .*; it must be ") as raised:
        GenerationConfig(**{name: -(10**9) if OPTIONS[name].value_type is int else float("nan")})
    assert raised.value.field == name
