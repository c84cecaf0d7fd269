"""Conversations get the token ids that transformers' `apply_chat_template` gives, over templates of public models."""

import copy
import json
from datetime import datetime

import pytest
import tokenizers
from public_templates import SPECIAL, TEMPLATES
from transformers import PreTrainedTokenizerFast

import edgeformer.runtime.text.chat_template
from edgeformer.errors import RequestError
from edgeformer.runtime.text.tokenizer import Tokenizer

SYSTEM = {"role": "system", "content": "Be <b>brief</b> & kind. "}
USER = {"role": "user", "content": " Où est 你好 😀? "}
AGAIN = {"role": "user", "content": "And\nthen?"}
ANSWER = {"role": "assistant", "content": "Ici.\n"}
THOUGHT = {"role": "assistant", "content": "Ici.", "reasoning_content": "It is here."}
SPELLED = {"role": "assistant", "content": "<think>\nIt is here.\n</think>\n\nIci."}
CALL = {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "on": True, "of": ["a", {"b": None}]}}
CALLING = {"role": "assistant", "tool_calls": [{"id": "abcdef123", "type": "function", "function": CALL}]}
RESULT = {"role": "tool", "tool_call_id": "abcdef123", "name": "weather", "content": '{"sky": "blue"}'}
PARAMETERS = {
    "type": "object", "required": ["city"],
    "properties": {"city": {"type": "string", "description": "Where <it> is"}, "days": {"type": ["integer", "null"]}},
}  # fmt: skip
WEATHER = {"name": "weather", "description": "Tells the weather", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": WEATHER | {"name": "clock"}}]


def parts(message):
    """Return a message whose content is a part of text."""
    return message | {"content": [{"type": "text", "text": message["content"]}]}


CONVERSATIONS = {
    "one": ([USER], {}),
    "system": ([SYSTEM, USER], {}),
    "turns": ([USER, ANSWER, AGAIN], {}),
    "all": ([SYSTEM, USER, ANSWER, AGAIN, ANSWER, USER], {}),
    "no prompt": ([USER, ANSWER], {"add_generation_prompt": False}),
    "thought": ([USER, THOUGHT, AGAIN], {}),
    "thought last": ([USER, THOUGHT], {"add_generation_prompt": False}),
    "other name": ([USER, {**ANSWER, "reasoning": "It is here."}, AGAIN], {}),
    "spelled thought": ([USER, SPELLED, AGAIN], {}),
    "tools": ([USER], {"tools": TOOLS}),
    "tools and a system": ([SYSTEM, USER], {"tools": TOOLS}),
    "call": ([USER, CALLING, RESULT], {"tools": TOOLS}),
    "call and text": ([USER, CALLING | {"content": "Let me see."}, RESULT], {"tools": TOOLS}),
    "thought and call": ([USER, CALLING | {"reasoning_content": "I look."}, RESULT, ANSWER, AGAIN], {"tools": TOOLS}),
    "two calls": ([USER, CALLING | {"tool_calls": CALLING["tool_calls"] * 2}, RESULT, RESULT], {"tools": TOOLS}),
    "call with null": ([USER, CALLING | {"content": None}, RESULT, ANSWER, AGAIN], {"tools": TOOLS}),
    "continued": ([USER, ANSWER], {"add_generation_prompt": False, "continue_final_message": True}),
    "continued word": ([SYSTEM, USER, {**ANSWER, "content": "The answer is"}], {"continue_final_message": True}),
    "no thinking": ([USER], {"enable_thinking": False}),
    "thinking": ([SYSTEM, USER, ANSWER, AGAIN], {"enable_thinking": True}),
    "effort": ([USER], {"reasoning_effort": "high"}),
    "other switch": ([USER], {"thinking": True}),
}
"""Messages, and the arguments of `apply_chat_template` beside `add_generation_prompt`."""

ADAPTED = {
    "smolvlm": "parts", "llava": "parts", "deepseek-v3": "arguments", "deepseek-r1": "arguments",
    "deepseek-v3.1": "arguments", "magistral": "thinking",
}  # fmt: skip
"""Templates that get another form than the one they are given, which transformers leaves to the caller."""

TOOLS_IN_MESSAGES = ("phi4-mini", "glm4")
"""Templates that read tools from a message, where transformers puts them nowhere."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, byte_level):
    folder = tmp_path_factory.mktemp("public")
    backend = tokenizers.Tokenizer.from_str(byte_level.backend.to_str())
    backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<|begin|>", "eos_token": "<|end|>"}')
    return folder


@pytest.fixture(scope="module", autouse=True)
def fixed_date():
    with pytest.MonkeyPatch.context() as patch:
        fixed = type("Fixed", (datetime,), {"now": classmethod(lambda cls: datetime(2024, 2, 29))})
        patch.setattr(edgeformer.runtime.text.chat_template, "datetime", fixed)
        patch.setattr("transformers.utils.chat_template_utils.datetime", fixed)
        yield


def load(folder, template):
    """Return our tokenizer and transformers' with a template."""
    ours, theirs = Tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    named = {"default": template} if isinstance(template, str) else {e["name"]: e["template"] for e in template}
    ours.use_templates(named)
    theirs.chat_template = template if isinstance(template, str) else named
    return ours, theirs


def with_text(call):
    """Return a call whose arguments are JSON text."""
    text = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return call | {"function": call["function"] | {"arguments": text}}


def adapted(name, messages):
    """Return messages in the form that a template needs, by hand."""
    messages = copy.deepcopy(messages)
    for message in messages:
        if ADAPTED.get(name) == "parts" and isinstance(message.get("content"), str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        if ADAPTED.get(name) == "arguments":
            message |= {"tool_calls": list(map(with_text, message["tool_calls"]))} if "tool_calls" in message else {}
        thought = message.get("reasoning_content") or message.get("reasoning")
        if ADAPTED.get(name) == "thinking" and thought:
            texts = [{"type": "text", "text": message["content"]}] if message.get("content") else []
            message["content"] = [{"type": "thinking", "thinking": thought}, *texts]
    return messages


def transformers_ids(tokenizer, messages, tools, options):
    """Return transformers' ids of a conversation; None where the template refuses it."""
    try:
        return tokenizer.apply_chat_template(messages, tools=tools, return_dict=False, **options)
    except Exception:  # a template is a program, which may raise anything
        return None


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_get_the_ids_that_transformers_gives(folder, name):
    ours, theirs = load(folder, TEMPLATES[name])
    compared = 0
    for case, (messages, given) in CONVERSATIONS.items():
        options = dict(given)
        tools = options.pop("tools", None)
        if tools and name in TOOLS_IN_MESSAGES:
            continue
        variables = {key: options.pop(key) for key in list(options) if key.startswith(("enable", "reason", "think"))}
        if not variables.keys() <= ours.template_variables(bool(tools)):
            continue
        options.setdefault("add_generation_prompt", not options.get("continue_final_message"))
        expected = transformers_ids(theirs, adapted(name, messages), tools, options | variables)
        if expected is None:  # the template reads the content of every message
            filled = [each | {"content": each.get("content") or ""} for each in adapted(name, messages)]
            expected = transformers_ids(theirs, filled, tools, options | variables)
        try:
            found = ours.encode_chat(messages, tools=tools or (), chat_template_kwargs=variables, **options)
        except RequestError:
            found = None
        assert found == expected, case
        compared += expected is not None
    assert compared >= 6


def test_a_change_of_one_character_would_be_seen(folder):
    """Negative control."""
    ours, theirs = load(folder, TEMPLATES["qwen3"])
    theirs.chat_template = TEMPLATES["qwen3"].replace("<think>\\n\\n</think>", "<think>\\n</think>")
    options = {"add_generation_prompt": True, "return_dict": False, "enable_thinking": False}
    assert theirs.apply_chat_template([USER], **options) != ours.encode_chat(
        [USER], chat_template_kwargs={"enable_thinking": False}
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_text_of_a_user_vanishes_in_either_form(folder, name):
    ours, _ = load(folder, TEMPLATES[name])
    user = {"role": "user", "content": "Where is the library?"}
    for message in (user, parts(user)):
        text = ours.render_chat([message])
        assert "Where is the library?" in text and "'text'" not in text and '"text"' not in text
    assert ours.render_chat([user]) == ours.render_chat([parts(user)])


def test_several_parts_are_one_text_where_the_template_wants_one(folder):
    ours, _ = load(folder, TEMPLATES["chatml"])
    several = {"role": "user", "content": [{"type": "text", "text": "Where is "}, {"type": "text", "text": "it?"}]}
    assert ours.render_chat([several]) == ours.render_chat([{"role": "user", "content": "Where is it?"}])


@pytest.mark.parametrize("name", ["gemma3", "smolvlm", "chatml"])
@pytest.mark.parametrize("texts", [("<|im_", "end|> Hi"), (" <|im_end|", "> Hi"), ("<|im_ ", " end|>")])
def test_neighbouring_parts_spell_no_special_token_together(folder, name, texts):
    ours, _ = load(folder, TEMPLATES[name])
    end = ours.backend.token_to_id("<|im_end|>")
    message = {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}
    plain = {"role": "user", "content": "Hi"}
    assert ours.encode_chat([message]).count(end) == ours.encode_chat([plain]).count(end)
