"""Thinking over HTTP: apart from the answer, streamed and whole, switched, limited, and sent back."""

import functools
import json

import openai
import pytest
from running_server import running
from thinking_bundles import Script, with_template

PARTS_ONLY = """\
{% for message in messages %}{{ message.role }}: {% for part in message.content %}{% if part.type == 'text' %}\
{{ part.text }}{% endif %}{% endfor %}
{% endfor %}assistant:"""
TOOLS_TOO = """\
{% if tools %}{{ tools | tojson }} Call as <tool_call></tool_call>{% endif %}\
{% for message in messages %}{{ message.role }}: {{ message.content }}{% if message.reasoning_content %}\
 ({{ message.reasoning_content }}){% endif %}
{% endfor %}assistant:{% if opens %}<think>{% endif %}{{ reasoning_effort }}</think>"""
ASK = [{"role": "user", "content": "What is 345 + 278?"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
ANSWER = "<think>\nI add the numbers.\n</think>\n\nIt is 623."
CALLING = '<think>Perhaps <tool_call>{"name": "add"}</tool_call></think><tool_call>{"name": "add"}</tool_call>'


@pytest.fixture(scope="module")
def server(tiny_llama_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles")
    bundles = [
        with_template(tiny_llama_bundle, folder / "thinks", special=True),
        with_template(tiny_llama_bundle, folder / "spells"),
        with_template(tiny_llama_bundle, folder / "parts", PARTS_ONLY),
        with_template(tiny_llama_bundle, folder / "tools", TOOLS_TOO, special=True),
        tiny_llama_bundle,
    ]
    with running(bundles) as server:
        yield server


@pytest.fixture
def client(server):
    with server.openai() as client:
        yield client


@pytest.fixture
def says(server, client, monkeypatch):
    """A function that lets a model say a text in the answers to come."""

    def say(name, text):
        served = server.models.find(name)
        submit = served.engine.submit

        def scripted(prompt, **options):
            return submit(prompt, logits_processors=[Script(served.tokenizer, text)], **options)

        monkeypatch.setattr(served.engine, "submit", scripted)
        return functools.partial(client.chat.completions.create, model=name, messages=ASK)

    return say


def test_thinking_is_a_field_of_its_own(says):
    create = says("thinks", ANSWER)
    answer = create()
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("I add the numbers.", "It is 623.")
    details = answer.usage.completion_tokens_details
    assert 0 < details.reasoning_tokens < answer.usage.completion_tokens
    deltas = [chunk.choices[0].delta for chunk in create(stream=True)]
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    texts = [delta.content or "" for delta in deltas]
    assert "".join(thoughts) == "I add the numbers." and "".join(texts) == "It is 623."
    # No delta has both, and thoughts come first. How many tokens are in one delta is a matter of who is faster.
    order = [bool(thought) for thought, text in zip(thoughts, texts, strict=True) if thought or text]
    assert order == sorted(order, reverse=True)
    assert all(not (thought and text) for thought, text in zip(thoughts, texts, strict=True))


def test_an_answer_cut_in_its_thoughts_has_no_text(says):
    choice = says("thinks", ANSWER)(max_tokens=5).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", "")
    assert "I add the numbers.".startswith(choice.message.reasoning_content)


def test_a_call_that_is_only_thought_of_does_not_run(says):
    choice = says("tools", CALLING)(tools=TOOLS).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == ["add"]
    assert choice.message.reasoning_content == 'Perhaps <tool_call>{"name": "add"}</tool_call>'
    assert choice.finish_reason == "tool_calls"


def test_responses_have_an_item_of_what_was_thought(client, says):
    says("thinks", ANSWER)
    create = functools.partial(client.responses.create, model="thinks", input="What is 345 + 278?")
    thought, message = create().output
    assert (thought.type, thought.content[0].text, thought.status) == ("reasoning", "I add the numbers.", "completed")
    assert message.content[0].text == "It is 623."
    events = list(create(stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert "".join(e.delta for e in events if e.type == "response.reasoning_text.delta") == "I add the numbers."
    assert kinds.index("reasoning_text.done") < kinds.index("output_text.delta")
    assert events[-1].response.usage.output_tokens_details.reasoning_tokens > 0
    assert [event.output_index for event in events if event.type == "response.output_item.done"] == [0, 1]
    # Sent back as it came, it goes where the template reads it.
    asked = [{"role": "user", "content": "What is 345 + 278?"}]
    tokens = create(input=[*asked, thought.model_dump(), message.model_dump(), *asked]).usage.input_tokens
    without = create(input=[*asked, message.model_dump(), *asked]).usage.input_tokens
    assert tokens > without + 3


def test_messages_have_a_block_of_what_was_thought(server, says):
    says("thinks", ANSWER)
    body = {"model": "thinks", "max_tokens": 99, "messages": ASK}
    answer = server.post("/v1/messages", body).json()
    thought, said = answer["content"]
    assert thought == {"type": "thinking", "thinking": "I add the numbers.", "signature": ""}
    assert said == {"type": "text", "text": "It is 623."}
    lines = server.post("/v1/messages", body | {"stream": True}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text"] and [e["type"] for e in events].count("content_block_stop") == 2
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "I add the numbers."
    assert "".join(delta.get("text", "") for delta in deltas) == "It is 623."

    def count(**fields):
        return server.post("/v1/messages/count_tokens", body | fields).json()["input_tokens"]

    turn = {"role": "assistant", "content": answer["content"]}
    assert count(messages=[*ASK, turn, *ASK]) > count(messages=[*ASK, turn | {"content": [said]}, *ASK]) + 3
    assert count(thinking={"type": "disabled"}) > count() == count(thinking={"type": "adaptive"})


@pytest.mark.parametrize("name", ["thinks", "spells"])
def test_a_budget_of_anthropics_is_kept(server, says, name):
    says(name, "<think>one two three four five six seven eight nine</think>done")
    body = {"model": name, "max_tokens": 99, "messages": ASK}
    held = {"thinking": {"type": "enabled", "budget_tokens": 4}}
    free, short = (server.post("/v1/messages", body | each).json() for each in ({}, held))
    assert free["content"][1] == {"type": "text", "text": "done"}
    thought = short["content"][0]["thinking"]
    assert free["content"][0]["thinking"].startswith(thought) and thought.count(" ") < 5
    assert [block["type"] for block in short["content"]] == ["thinking", "text"]
    lines = server.post("/v1/messages", body | held | {"stream": True}).text.splitlines()
    deltas = [json.loads(line[6:])["delta"] for line in lines if '"type":"thinking_delta"' in line]
    assert "".join(each["thinking"] for each in deltas) == thought


def test_a_model_that_always_thinks_may_be_asked_to(says):
    """It reads no switch, and thinks: that is what was asked for. What it cannot do, leave it, is refused."""
    create = says("tools", "<think>Hm.</think>done")
    assert create(extra_body={"thinking": {"type": "enabled"}}).choices[0].message.content == "done"
    with pytest.raises(openai.BadRequestError, match="does not read"):
        create(extra_body={"thinking": {"type": "disabled"}})


def test_special_tokens_of_an_answer_are_shown_where_wanted(says):
    create = says("spells", "<think>I add.</think>It is <|im_start|>623.")
    plain = create().choices[0].message
    shown = create(extra_body={"skip_special_tokens": False}).choices[0].message
    assert (plain.reasoning_content, plain.content) == ("I add.", "It is 623.")
    assert (shown.reasoning_content, shown.content) == ("I add.", "It is <|im_start|>623.")


FIELDS = {
    "chat_template_kwargs": ({"enable_thinking": False}, {"other": 1}),
    "enable_thinking": (False, None),
    "thinking": ({"type": "disabled"}, None),
    "reasoning": ({"enabled": False}, {"effort": "high"}),
    "reasoning_effort": ("none", "high"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_thinking_is_switched_by_any_of_its_names(client, server, field):
    off, unread = FIELDS[field]
    create = functools.partial(client.chat.completions.create, messages=ASK, max_tokens=1)
    plain = create(model="thinks").usage.prompt_tokens
    assert create(model="thinks", extra_body={field: off}).usage.prompt_tokens > plain, "`off` stands in the prompt"
    if unread is not None:
        with pytest.raises(openai.BadRequestError) as caught:
            create(model="thinks", extra_body={field: unread})
        assert caught.value.param.startswith(field) and "does not read" in caught.value.body["message"]
    if field != "chat_template_kwargs":  # a model that does not think: nothing to switch off
        assert create(model="tiny-llama", extra_body={field: off}).usage.prompt_tokens > 0


def test_degrees_go_to_a_template_that_reads_them(client):
    create = functools.partial(client.chat.completions.create, model="tools", messages=ASK, max_tokens=1)
    plain = create().usage.prompt_tokens
    for fields in ({"reasoning_effort": "high"}, {"extra_body": {"reasoning": {"effort": "high", "summary": "auto"}}}):
        assert create(**fields).usage.prompt_tokens > plain
    response = client.responses.create(model="tools", input="Hi", reasoning={"effort": "high"}, max_output_tokens=1)
    assert response.reasoning.effort == "high"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"enable_thinking": True, "thinking": False}, "thinking", "enable_thinking and thinking say different things"),
        ({"thinking": {"type": "on"}}, "thinking.type", "Input should be"),
        ({"thinking_budget": -2}, "thinking_budget", "it must be at least 0"),
    ],
)
def test_what_thinking_cannot_be_is_refused(client, fields, param, message):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="thinks", messages=ASK, extra_body=fields)
    assert message in caught.value.body["message"], caught.value.body
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [{"thinking_budget": 4}, {"thinking": {"type": "enabled", "budget_tokens": 4}}, {"reasoning": {"max_tokens": 4}}],
    ids=["thinking_budget", "thinking", "reasoning"],
)
def test_a_budget_ends_thinking(says, fields):
    create = says("thinks", "<think>one two three four five six seven eight nine</think>done")
    free, held = create(), create(extra_body=fields, n=2)
    assert free.choices[0].message.content == "done"
    for choice in held.choices:
        thought = choice.message.reasoning_content
        assert free.choices[0].message.reasoning_content.startswith(thought) and thought.count(" ") < 5
        assert choice.message.content


def test_a_model_without_marks_has_no_budget(client):
    with pytest.raises(openai.BadRequestError, match="has marks of thinking") as caught:
        client.chat.completions.create(model="tiny-llama", messages=ASK, extra_body={"thinking_budget": 4})
    assert caught.value.param == "thinking_budget"


def test_json_is_not_written_into_opened_thoughts(client):
    answer = client.chat.completions.create(
        model="thinks", messages=ASK, max_tokens=200, response_format={"type": "json_object"},
        extra_body={"chat_template_kwargs": {"opens": True}, "seed": 1, "temperature": 1},
    ).choices[0]  # fmt: skip
    assert not hasattr(answer.message, "reasoning_content")
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)
    assert answer.message.content.startswith("{")


def test_what_was_thought_is_sent_back_by_either_name(client):
    create = functools.partial(client.chat.completions.create, model="thinks", max_tokens=1)
    turn = {"role": "assistant", "content": "623."}
    plain = create(messages=[*ASK, turn, *ASK]).usage.prompt_tokens
    for name in ("reasoning_content", "reasoning"):
        assert create(messages=[*ASK, turn | {name: "I add."}, *ASK]).usage.prompt_tokens > plain


def test_text_arrives_where_the_template_reads_parts(server):
    """Report 1: it wrote nothing of a text, and the server made a text of parts."""
    text, parts = (
        server.post("/tokenize", {"model": "parts", "messages": [{"role": "user", "content": content}]}).json()
        for content in ("Hello there", [{"type": "text", "text": "Hello there"}])
    )
    assert text == parts and text["count"] >= 8
    said = server.post("/detokenize", {"model": "parts", "tokens": text["tokens"]}).json()["prompt"]
    assert "user: Hello there" in said
