"""Thinking is kept apart from the answer, whatever marks a model writes and however its text is divided."""

import numpy as np
import pytest
from public_templates import TEMPLATES
from thinking_bundles import Script, with_template

from edgeformer.errors import RequestError
from edgeformer.runtime import GenerationStream, load_causal_lm
from edgeformer.runtime.text.thinking.formats import FORMATS, recognise
from edgeformer.runtime.text.thinking.reader import ChannelReader, ThinkingReader, ThinkingStream
from edgeformer.runtime.text.thinking.switches import thinking_variables

BY_NAME = {format.name: format for format in FORMATS}


def read(name, text, size=1000, is_open=False):
    format = BY_NAME[name]
    reader = (ChannelReader if format.channels else ThinkingReader)(format, is_open=is_open)
    pieces = [reader.push(text[start : start + size]) for start in range(0, len(text), size)] + [reader.finish()]
    return "".join(each.reasoning for each in pieces), "".join(each.text for each in pieces)


CALL = '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": "<|end|>"}<|call|>'
SAID = "Wait.<|end|>"
PASSED_ON = CALL.removesuffix("<|call|>")  # its arguments quote a mark that ends a message
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|>"
FINAL, PREAMBLE = (f"<|start|>assistant<|channel|>{name}<|message|>" for name in ("final", "commentary"))
CASES = {
    "whole": ("think", "<think>\nHm </thin\n</think>\n\nIt is.\n", False, ("Hm </thin", "It is.\n")),
    "opened by the prompt": ("think", "Hm\n</think>\n\nIt is.", True, ("Hm", "It is.")),
    "never closed": ("think", "Hm, never ", True, ("Hm, never", "")),
    "cut within the mark": ("think", "<think>Hm</thi", False, ("Hm</thi", "")),
    "empty": ("think", "<think>\n\n</think>\n\nHi", False, ("", "Hi")),
    "two": ("think", "<think>a</think>\n<think>b</think>\nHi", False, ("a\n\nb", "Hi")),
    "closed already": ("think", "</think>Hi", False, ("", "Hi")),
    "marks within the answer": ("think", " No <think> x</think> y", False, ("", " No <think> x</think> y")),
    "no thinking": ("think", "  \nHi ", False, ("", "  \nHi ")),
    "the beginning of a mark": ("think", "<thi", False, ("", "<thi")),
    "a draft of a call": ("think", '<think><tool_call>{"name": "f"}</tool_call></think>No.', False,
                          ('<tool_call>{"name": "f"}</tool_call>', "No.")),
    "marks around the answer": ("granite", "<think>a</think>\n<response>Hi </response>\n", False, ("a", "Hi")),
    "not the end": ("granite", "<response>Hi </response> there", False, ("", "Hi </response> there")),
    "command a": ("command-a", "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", False,
                  ("a", "b")),
    "gemma": ("gemma4", "<|channel>thought\nabc\n<channel|>Hi", False, ("abc", "Hi")),
    "mistral": ("mistral", "[THINK]a[/THINK]b", False, ("a", "b")),
    "granite 3.2": ("granite-3.2", "Here is my thought process: a\nHere is my response: b", False, ("a", "b")),
    "channels": ("channels", f"{ANALYSIS}{FINAL}Hi.<|return|>", False, ("Hm.", "Hi.")),
    "a preamble and a call": ("channels", f"{ANALYSIS}{PREAMBLE}{SAID}{CALL}", False, ("Hm.", f"Wait.{PASSED_ON}")),
    "a call at once": ("channels", " to=functions.f<|channel|>commentary json<|message|>{}<|call|>", False,
                       ("", " to=functions.f<|channel|>commentary json<|message|>{}<|call|>")),
    "no channel": ("channels", "Plain text", False, ("", "Plain text")),
    "a channel opened by the prompt": ("channels", "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi", True,
                                       ("Hm.", "Hi")),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("case", CASES)
def test_thoughts_and_answers_are_told_apart(case, size):
    name, text, is_open, expected = CASES[case]
    assert read(name, text, size, is_open) == expected


@pytest.mark.parametrize("name", BY_NAME)
def test_every_format_is_read_in_pieces_of_any_size(name):
    format = BY_NAME[name]
    behind = format.forced_closing if format.channels else format.closing
    for size in (1, 3, 1000):
        assert read(name, f"{format.opening}I think.{behind}I say.", size) == ("I think.", "I say.")


def test_text_comes_as_soon_as_it_is_certain():
    reader = ThinkingReader(BY_NAME["think"])
    assert reader.push("<think>One </th") == ("One", "")
    assert reader.push("ing, two.") == (" </thing, two.", "")
    assert reader.push("</think>Yes") == ("", "Yes")


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("qwen3", "think"), ("glm4.5", "think"), ("deepseek-r1", "think"), ("smollm3", "think"),
        ("granite3", "granite"), ("gpt-oss", "channels"), ("magistral", "mistral"), ("seed-oss", "seed"),
        ("command-a", "command-a"), ("olmo3-think", "think"),
        ("gemma4", "gemma4"), ("chatml", None), ("llama3.1", None), ("gemma3", None), ("mistral-v3", None),
    ],
)  # fmt: skip
def test_a_format_is_recognised_by_the_template(name, format):
    found = recognise(TEMPLATES[name], ())
    assert (found.name if found else None) == format


def test_a_format_is_recognised_by_the_added_tokens():
    assert recognise("", {"<think>", "</think>", "<s>"}).name == "think"
    assert recognise("", {"<think>"}) is None


@pytest.mark.parametrize(
    ("names", "switch", "effort", "thinks", "expected"),
    [
        ({"enable_thinking"}, False, None, True, {"enable_thinking": False}),
        ({"thinking"}, True, None, True, {"thinking": True}),
        ({"reasoning_effort"}, None, "low", True, {"reasoning_effort": "low"}),
        ({"enable_thinking"}, None, "none", True, {"enable_thinking": False}),
        (set(), False, None, False, {}),
        (set(), None, "none", False, {}),
        ({"enable_thinking"}, None, "high", True, "reasoning_effort would change nothing: the chat template of this "
         "model does not read reasoning_effort. It reads enable_thinking."),
        (set(), False, None, True, "enable_thinking would change nothing: the chat template of this model does not "
         "read enable_thinking or thinking or reasoning."),
        (set(), True, None, False, "enable_thinking would change nothing"),
    ],
)  # fmt: skip
def test_thinking_is_switched_where_the_template_reads_it(names, switch, effort, thinks, expected):
    if isinstance(expected, dict):
        assert thinking_variables(frozenset(names), switch, effort, thinks=thinks) == expected
        return
    with pytest.raises(RequestError) as caught:
        thinking_variables(frozenset(names), switch, effort, thinks=thinks)
    assert str(caught.value).startswith(expected)


@pytest.fixture(scope="module")
def bundle(tiny_llama_bundle, tmp_path_factory):
    return with_template(tiny_llama_bundle, tmp_path_factory.mktemp("thinks") / "thinks", special=True)


@pytest.fixture(scope="module")
def model(bundle):
    return load_causal_lm(bundle, "cpu", 1)


ASK = [{"role": "user", "content": "What is 345 + 278?"}]
ANSWER = "<think>\nI add the numbers.\n</think>\n\nIt is 623."


def test_a_chat_has_what_was_thought_apart(model):
    assert model.tokenizer.thinking_format.name == "think"
    script = Script(model.tokenizer, ANSWER)
    result = model.chat(ASK, logits_processors=[script]).finish()
    assert (result.reasoning, result.text, result.finish_reason) == ("I add the numbers.", "It is 623.", "eos")
    assert "".join(model.chat(ASK, logits_processors=[script])) == "It is 623."
    events = list(model.chat(ASK, logits_processors=[script]).events())
    assert "".join(each.reasoning for each in events) == "I add the numbers."
    assert "".join(each.text for each in events) == "It is 623."
    assert [each.token_id for each in events] == result.token_ids, "all tokens are there"


def test_marks_that_are_special_tokens_are_read(model):
    ids = model.tokenizer.encode("<think>a</think>b", add_special_tokens=False)
    assert len(model.tokenizer.decode(ids)) == 2, "decoding leaves them out"
    stream = ThinkingStream(model.tokenizer, model.tokenizer.thinking_format)
    pieces = [*map(stream.push, ids), stream.finish()]
    assert ["".join(each) for each in zip(*pieces, strict=True)] == ["a", "b"]
    assert stream.reasoning_tokens == 3


@pytest.mark.parametrize("skipped", [True, False])
def test_other_special_tokens_are_shown_where_wanted(tiny_llama_bundle, tmp_path, skipped):
    model = load_causal_lm(with_template(tiny_llama_bundle, tmp_path / "spells"), "cpu", 1)
    script = Script(model.tokenizer, "<think>I add.</think>It is <|im_start|>623.")
    stream = model.chat(ASK, logits_processors=[script], skip_special_tokens=skipped)
    pieces = "".join(stream)
    answer = stream.finish()
    said = "It is 623." if skipped else "It is <|im_start|>623."
    assert (answer.reasoning, answer.text, pieces) == ("I add.", said, said)


def test_thinking_that_the_template_opens_needs_no_mark(model):
    script = Script(model.tokenizer, "I add.</think>It is 623.")
    result = model.chat(ASK, chat_template_kwargs={"opens": True}, logits_processors=[script]).finish()
    assert (result.reasoning, result.text) == ("I add.", "It is 623.")


def test_a_chat_that_is_cancelled_keeps_what_was_thought(model):
    stream = model.chat(ASK, logits_processors=[Script(model.tokenizer, ANSWER)])
    events = stream.events()
    for _ in range(5):
        next(events)
    stream.cancel()
    result = stream.finish()
    assert (
        result.finish_reason == "cancelled" and result.text == "" and "I add the numbers.".startswith(result.reasoning)
    )


def test_a_stop_string_ends_the_answer(model):
    script = Script(model.tokenizer, ANSWER)
    result = model.chat(ASK, logits_processors=[script], stop=" 62").finish()
    assert (result.reasoning, result.text, result.finish_reason) == ("I add the numbers.", "It is", "stop")


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("budget", [0, 1, 4, 1000])
def test_a_budget_makes_the_model_answer(model, budget, opens):
    text = ("" if opens else "<think>") + "one two three four five six seven eight</think>done"
    options = {"chat_template_kwargs": {"opens": opens}, "logits_processors": [Script(model.tokenizer, text)]}
    free = model.chat(ASK, **options).finish()
    held = model.chat(ASK, **options, thinking_budget=budget).finish()
    mark = model.tokenizer.backend.token_to_id("</think>")
    if budget == 1000:
        assert held == free or (held.text, held.reasoning) == (free.text, free.reasoning) == ("done", free.reasoning)
        return
    thought = held.token_ids.index(mark)
    lead = len(model.tokenizer.encode_marks("\n</think>")) - 1
    assert thought == max(budget, 0 if opens else 1) + lead, "the mark comes when the budget is spent"
    assert (free.reasoning or "").startswith(held.reasoning or "") and held.reasoning != free.reasoning


def test_a_budget_needs_a_model_that_thinks(tiny_llama_bundle):
    plain = load_causal_lm(tiny_llama_bundle, "cpu", 1)
    with pytest.raises(
        RequestError, match="neither the chat template nor the tokenizer of this model has marks of thi"
    ):
        plain.chat(ASK, thinking_budget=3).finish()
    stream = plain.chat(ASK)
    assert type(stream) is GenerationStream and stream.finish().reasoning is None


def test_a_budget_waits_for_the_end_of_a_character(model):
    script = Script(model.tokenizer, "<think>😀😀😀😀</think>done")
    for budget in range(1, 8):
        result = model.chat(ASK, logits_processors=[script], thinking_budget=budget).finish()
        assert "\N{REPLACEMENT CHARACTER}" not in (result.reasoning or ""), budget


def test_what_was_thought_goes_back_where_the_template_reads_it(model):
    turns = [*ASK, {"role": "assistant", "content": "623.", "reasoning_content": "I add."}, *ASK]
    assert "(I add.)" in model.tokenizer.render_chat(turns)
    assert "off" in model.tokenizer.render_chat(ASK, chat_template_kwargs={"enable_thinking": False})
    script = Script(model.tokenizer, ANSWER)
    first = model.chat(ASK, logits_processors=[script], enable_thinking=True).finish()
    off = model.chat(ASK, logits_processors=[script], enable_thinking=False).finish()
    assert off.prompt_tokens > first.prompt_tokens
    with pytest.raises(RequestError, match="reasoning_effort would change nothing"):
        model.chat(ASK, reasoning_effort="high")
    with pytest.raises(RequestError, match=r"enable_thinking is 'no' \(str\); it must be True or False"):
        model.chat(ASK, enable_thinking="no")


def test_negative_control_of_the_script(model):
    """Without the script the model answers otherwise, so that the tests above see what they write."""
    assert model.chat(ASK, max_new_tokens=20).finish().text != "It is 623."
    assert np.isfinite(Script(model.tokenizer, "a")(np.arange(3), np.zeros(2048, np.float32))).sum() == 1
