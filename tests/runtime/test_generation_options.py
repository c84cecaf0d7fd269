"""Every surface of an option of generation equals what follows from its declaration; an error carries its field."""

import importlib.util
from dataclasses import MISSING, fields
from pathlib import Path

import click
import pytest

from edgeformer.cli._declared import flag_of, help_of
from edgeformer.cli._generation import KINDS, explicit_options, flags_for_names
from edgeformer.cli.main import cli
from edgeformer.errors import RequestError
from edgeformer.options.generation import (
    OPTIONS,
    GenerationOptions,
    SequenceBiases,
    Texts,
    TokenBiases,
    TokenIds,
    TokenSequences,
)
from edgeformer.options.generation_fields import GENERATION_FIELDS, MODEL_FIELDS
from edgeformer.runtime import GenerationConfig
from edgeformer.runtime.generation.option_checks import CHECKS

ROOT = Path(__file__).parent.parent.parent


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_keywords_for_type_checkers_are_those_declared():
    writer = tool("option_keywords")
    for file in writer.FILES:
        source = file.read_text(encoding="utf-8")
        assert writer.with_keywords(source) == source
    assert GenerationOptions.__annotations__.keys() == OPTIONS.keys()


def test_the_config_has_the_declared_fields_and_defaults():
    assert [field.name for field in fields(GenerationConfig)] == list(OPTIONS)
    assert all(field.default is OPTIONS[field.name].default is not MISSING for field in fields(GenerationConfig))
    assert all(f"    {name}: " in GenerationConfig.__doc__ for name in OPTIONS)


def test_a_declared_option_that_is_no_keyword_is_found():
    writer = tool("option_keywords")
    source = writer.FILES[0].read_text(encoding="utf-8")
    changed = source.replace(
        "    top_h: float = option(", "    top_new: float = option(0.0, 'New.')\n    top_h: float = option(", 1
    )
    assert "    top_new: float\n" in writer.with_keywords(changed) != changed


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.range])
def test_every_range_is_checked_and_the_error_has_its_field(name):
    with pytest.raises(RequestError, match=f"^{name} is .*; it must be ") as raised:
        GenerationConfig(**{name: -(10**9) if OPTIONS[name].value_type is int else float("nan")})
    assert raised.value.field == name


@pytest.mark.parametrize("command", ["run", "chat", "batch"])
def test_commands_have_the_declared_options_with_their_help(command):
    params = {param.name: param for param in cli.get_command(click.Context(cli), command).params}
    found = {name: param for name, param in params.items() if name in OPTIONS}
    lacking = {"run": set(), "chat": {"num_beams", "top_logprobs"}, "batch": {"top_logprobs"}}[command]
    assert found.keys() == {name for name, option in OPTIONS.items() if option.cli} - lacking
    for name, param in found.items():
        option = OPTIONS[name]
        assert param.opts == [each for each in (flag_of(option), option.short) if each]
        text, _, default = flags_for_names(help_of(option, KINDS)).partition(" [default: ")
        assert param.help.startswith(text) and (not default or param.help.endswith(default))
        assert param.is_flag == (option.value_type is bool)
        assert param.multiple == (option.value_type in (Texts, TokenBiases))
    parsed = cli.get_command(click.Context(cli), command).make_context(
        command, ["a", "b", "c"][: 3 if command == "batch" else 1]
    )
    assert explicit_options({name: parsed.params[name] for name in found}) == {}, "the runtime has the defaults"


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.cli and option.range])
def test_the_command_line_refuses_what_the_runtime_refuses(name):
    command = cli.get_command(click.Context(cli), "run")
    param = next(param for param in command.params if param.name == name)
    option, context = OPTIONS[name], click.Context(command)
    for number in (-3, -1, 0, 0.5, 1, 1.5, 2, 64, 65, 10**6):
        if option.value_type is int and number != int(number):
            continue
        allowed = True
        try:
            GenerationConfig(
                **{name: option.value_type(number)}, **({"logprobs": True} if name == "top_logprobs" else {})
            )
        except RequestError as error:
            allowed = f"it must be {option.range}." not in str(error)
        if allowed:
            assert param.type_cast_value(context, str(number)) == number
        else:
            with pytest.raises(click.BadParameter, match="it must be ") as raised:
                param.type_cast_value(context, str(number))
            assert str(option.range) in raised.value.message


def test_the_bodies_of_the_server_have_the_declared_fields():
    pytest.importorskip("pydantic")
    from edgeformer.server.schema.api_errors import param_of
    from edgeformer.server.schema.bodies import GenerationBody, ModelBody
    from edgeformer.server.schema.response_bodies import OPTION_NAMES, ResponseBody

    declared = {option.api: option for option in OPTIONS.values() if option.api}
    others = {"n", "response_format", "stream", "stream_options", "structured_outputs", *ModelBody.model_fields}
    assert GenerationBody.model_fields.keys() - others == declared.keys()
    assert ResponseBody.model_fields.keys() & declared.keys() == set(OPTION_NAMES)
    kinds = {int: "integer", float: "number", bool: "boolean"}
    for body, names in ((GenerationBody, declared), (ResponseBody, OPTION_NAMES)):
        fields = body.model_json_schema()["properties"]
        for name in names:
            option, variants = declared[name], fields[name]["anyOf"]
            assert variants[-1] == {"type": "null"} and fields[name]["default"] is None
            if option.value_type in kinds:
                limits = {"ge": "minimum", "le": "maximum", "lt": "exclusiveMaximum"}
                expected = {limits[key]: limit for key, limit in option.api_limits.items()}
                assert variants[0] == {"type": kinds[option.value_type]} | expected
            assert param_of(RequestError("wrong", field=option.name)) == name
    assert {param_of(RequestError("wrong", field=name)) for name in (None, "prompt", "num_beams")} == {None}


def test_every_option_has_a_check_and_the_file_those_that_say_so():
    assert {option.value_type for option in OPTIONS.values()} <= CHECKS.keys()
    read = {name for name, option in OPTIONS.items() if option.in_file}
    assert set(GENERATION_FIELDS) == read | set(MODEL_FIELDS)
    lists = (Texts, TokenIds, TokenSequences, TokenBiases, SequenceBiases)
    for name, option in OPTIONS.items():
        if option.value_type in lists:
            assert getattr(GenerationConfig(**{name: list(option.default)}), name) == option.default


def test_the_reference_has_a_row_for_each_option():
    rows = {}
    for line in tool("docs_site").generation_options().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip().replace("\\|", "|") for cell in line.replace("\\|", "\0").strip("|").split("|")]
            rows[cells[0].strip("`")] = [cell.replace("\0", "|") for cell in cells]
    assert list(rows) == list(OPTIONS)
    for name, (_, default, allowed, text, flag, api, in_file) in rows.items():
        option = OPTIONS[name]
        assert default == f"`{option.default!r}`" and allowed == (str(option.range) if option.range else "")
        assert text == f"{option.help} {option.more}".strip()
        assert (flag, api) == (f"`{flag_of(option)}`" if option.cli else "", f"`{option.api}`" if option.api else "")
        assert (in_file == "yes") == option.in_file
