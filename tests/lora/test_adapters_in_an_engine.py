"""Requests with different adapters share a batch and get what they get alone; a server lists adapters as models."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from edgeformer.cli.main import cli
from edgeformer.errors import RequestError
from edgeformer.runtime import CausalLM, Engine, load_causal_lm
from edgeformer.runtime.prefixes.held_rows import HeldRows
from edgeformer.server.service.served import load_models

PROMPTS = [[5, 9, 41, 7, 100], [3, 4], [77, 20, 11], [5, 9, 41, 7, 100], [9] * 20, [64, 65, 66, 67]]
NAMES = [None, "polite", "brief", "polite", None, "brief"]
TOKENS = [9, 14, 5, 11, 7, 12]


@pytest.fixture(scope="module")
def alone(adapted_bundle):
    """The tokens of each request by itself."""
    model = load_causal_lm(adapted_bundle)
    requests = zip(PROMPTS, NAMES, TOKENS, strict=True)
    return [model.generate(prompt, adapter=name, max_new_tokens=new).token_ids for prompt, name, new in requests]


@pytest.mark.parametrize("max_rows", [1, 2, 6])
def test_rows_of_one_batch_have_adapters_of_their_own(max_rows, adapted_bundle, alone):
    with Engine(load_causal_lm(adapted_bundle), max_rows=max_rows) as engine:
        # Twice, so that rows are used again by requests with other adapters.
        for _ in range(2):
            streams = [
                engine.submit(prompt, adapter=name, max_new_tokens=new)
                for prompt, name, new in zip(PROMPTS, NAMES, TOKENS, strict=True)
            ]
            assert [stream.finish(60).token_ids for stream in streams] == alone
    assert len({tuple(tokens[:5]) for tokens in (alone[0], alone[3])}) == 2, "the adapter changes nothing"


def test_a_row_takes_a_sum_after_an_adapter(adapted_bundle):
    """A sum has a larger rank than each: what is bound for the row's steps is bound anew."""
    model = load_causal_lm(adapted_bundle)
    names = ["brief", "polite*0.7+brief*0.3", "polite", "brief*2"]
    alone = [model.generate(PROMPTS[0], adapter=name, max_new_tokens=12).token_ids for name in names]
    assert len(set(map(tuple, alone))) == len(names)
    with Engine(load_causal_lm(adapted_bundle), max_rows=1) as engine:
        found = [engine.submit(PROMPTS[0], adapter=name, max_new_tokens=12).finish(60) for name in names]
    assert [each.token_ids for each in found] == alone


LONG = [value % 120 + 3 for value in range(40)]
ENDS = [[], [7, 9], [11]]


def cached_and_tokens(engine, name):
    """Run prompts that begin alike, one after the other, with one adapter."""
    done = [engine.submit([*LONG, *end], adapter=name, max_new_tokens=8).finish(60) for end in ENDS]
    return [each.cached_tokens for each in done], [each.token_ids for each in done]


def test_prefixes_of_each_adapter_are_kept_and_never_mixed(adapted_bundle):
    model = load_causal_lm(adapted_bundle)
    names = [None, "polite", "brief"]
    alone = {name: [model.generate([*LONG, *end], adapter=name, max_new_tokens=8).token_ids for end in ENDS]
             for name in names}  # fmt: skip
    with Engine(load_causal_lm(adapted_bundle), max_rows=2) as engine:
        for name in names:
            cached, tokens = cached_and_tokens(engine, name)
            assert tokens == alone[name]
            assert cached == [0, 40, 40], "the first prompt of an adapter finds nothing of the others"


def test_prefixes_of_another_adapter_would_be_seen(adapted_bundle, monkeypatch):
    """The negative control of the test above: were rows held under another adapter's name, tokens would be others."""
    model = load_causal_lm(adapted_bundle)
    alone = [model.generate([*LONG, *end], adapter="polite", max_new_tokens=8).token_ids for end in ENDS]
    hold = HeldRows.hold
    monkeypatch.setattr(HeldRows, "hold", lambda self, place, row: hold(self, place, replace(row, kind="polite")))
    with Engine(load_causal_lm(adapted_bundle), max_rows=2) as engine:
        cached_and_tokens(engine, None)
        cached, tokens = cached_and_tokens(engine, "polite")
    assert cached[0] > 0 and tokens != alone


def test_an_engine_refuses_an_adapter_that_is_not_there(adapted_bundle):
    with Engine(load_causal_lm(adapted_bundle)) as engine, pytest.raises(RequestError, match="no adapter 'rude'"):
        engine.submit(PROMPTS[0], adapter="rude")


def test_a_server_has_a_model_for_each_adapter(adapted_bundle):
    models = load_models([adapted_bundle], "cpu")
    name = adapted_bundle.name
    try:
        assert [served.name for served in models] == [name, f"{name}:polite", f"{name}:brief"]
        assert [served.name for served in models.bases] == [name]
        assert models.find(f"{name}:brief").adapter == "brief"
        assert models.find(None).adapter is None
        assert len({served.engine for served in models}) == 1
    finally:
        models.close(drain=False)


def test_the_command_line_runs_a_bundle_with_an_adapter(adapted_bundle, monkeypatch):
    asked = []

    def chat(model, messages, **options):
        asked.append(options["adapter"])
        return model.stream([3, 4, 5], **options | {"max_new_tokens": 2})

    monkeypatch.setattr(CausalLM, "chat", chat)  # the bundle has no tokenizer
    done = CliRunner().invoke(cli, ["run", str(adapted_bundle), "hello", "--chat", "--adapter", "brief"])
    assert done.exit_code == 0, done.output
    assert asked == ["brief"]
    failed = CliRunner().invoke(cli, ["run", str(adapted_bundle), "hello", "--chat", "--adapter", "rude"])
    assert failed.exit_code == 1 and "has no adapter 'rude'; it has polite, brief" in failed.output
