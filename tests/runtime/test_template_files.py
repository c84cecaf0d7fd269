"""Chat templates are found wherever Hugging Face has kept them, and get what a caller gives them."""

import json

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from edgeformer.client_files.files import copy_files
from edgeformer.errors import BundleError, RequestError
from edgeformer.manifest.deployment import DEPLOYMENTS
from edgeformer.runtime.text.tokenizer import Tokenizer

HI = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
DEFAULT, TOOL_USE = "plain {{ messages[0].content }}", "{{ tools | length }} tools {{ messages[0].content }}"


@pytest.fixture
def folder(tmp_path, byte_level):
    """A function that writes a folder with a tokenizer and further files."""

    def write(files):
        byte_level.backend.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return write


NAMED = [{"name": "default", "template": DEFAULT}, {"name": "tool_use", "template": TOOL_USE}]
PLACES = {
    "a list in the config": {"tokenizer_config.json": {"chat_template": NAMED}},
    "files": {"chat_template.jinja": DEFAULT, "additional_chat_templates/tool_use.jinja": TOOL_USE},
    "files before the config": {
        "chat_template.jinja": DEFAULT, "additional_chat_templates/tool_use.jinja": TOOL_USE,
        "tokenizer_config.json": {"chat_template": "old"},
    },
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_conversations_with_tools_have_the_template_of_that_name(folder, place):
    path = folder(PLACES[place])
    tokenizer, theirs = Tokenizer(path), PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    for tools, text in ((None, "plain Hi"), (TOOLS, "1 tools Hi")):
        assert tokenizer.render_chat(HI, tools or ()) == text
        assert theirs.apply_chat_template(HI, tools=tools, tokenize=False) == text


def test_the_template_for_tools_may_be_the_only_one(folder):
    tokenizer = Tokenizer(folder({"tokenizer_config.json": {"chat_template": NAMED[1:]}}))
    assert tokenizer.has_chat_template and tokenizer.chat_template == TOOL_USE
    assert tokenizer.render_chat(HI, TOOLS) == "1 tools Hi"
    with pytest.raises(RequestError, match="has the chat templates tool_use, and none for a conversation without too"):
        tokenizer.render_chat(HI)


def test_the_template_of_a_processor_is_the_last_resort(folder):
    path = folder({"chat_template.json": {"chat_template": DEFAULT}})
    assert Tokenizer(path).render_chat(HI) == "plain Hi"
    assert Tokenizer(folder({"tokenizer_config.json": {"chat_template": "own"}})).render_chat(HI) == "own"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer_config.json": {"chat_template": 3}}, r"tokenizer_config\.json has chat_template = 3 \(int\)"),
        ({"chat_template.json": {"chat_template": 3}}, r"chat_template\.json has chat_template = 3 \(int\)"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "default"}]}}, r"has chat_template = None"),
        ({"tokenizer_config.json": {"chat_template": [{"name": [], "template": "x"}, 1]}}, r"has a name that is no t"),
    ],
)
def test_a_template_that_is_no_text_is_named(folder, files, message):
    with pytest.raises(BundleError, match=message):
        Tokenizer(folder(files))


def test_an_export_takes_all_templates_with_it(folder, tmp_path_factory):
    files = {"chat_template.json": {}, "additional_chat_templates/tool_use.jinja": TOOL_USE}
    source = folder(files | {"additional_chat_templates/other.txt": "no"})
    bundle = tmp_path_factory.mktemp("bundle")
    copy_files(DEPLOYMENTS[None], source, bundle)
    assert {str(path.relative_to(bundle)) for path in bundle.rglob("*.*")} == {"tokenizer.json", *files}


def test_special_tokens_are_read_where_older_folders_name_them(folder):
    template = {"chat_template.jinja": "{{ bos_token }}{{ messages[0].content }}"}
    path = folder(template | {"special_tokens_map.json": {"bos_token": {"content": "<|begin|>"}}})
    (path / "tokenizer_config.json").write_text("{}")
    theirs = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    assert Tokenizer(path).render_chat(HI) == "<|begin|>Hi" == theirs.apply_chat_template(HI, tokenize=False)


THINKING = """\
{% for message in messages %}{% set content = message.content %}
{% if message.role == 'assistant' %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{ '<|im_start|>' + message.role + ': ' + content + '<|im_end|>' }}
{% endfor %}{{ enable_thinking | default(true) }}"""


def test_earlier_thinking_is_left_out_by_special_tokens(folder):
    path = folder({"chat_template.jinja": THINKING})
    backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", "</think>"])
    backend.save(str(path / "tokenizer.json"))
    tokenizer, theirs = Tokenizer(path), PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    chat = [*HI, {"role": "assistant", "content": "secret plan</think>Yes."}, *HI]
    ids = tokenizer.encode_chat(chat)
    assert ids == theirs.apply_chat_template(chat, return_dict=False)
    assert "secret plan" not in tokenizer.decode(ids) and "Yes." in tokenizer.decode(ids)
    # What users, systems and tools spell stays text, in their messages and in variables.
    mark = tokenizer.backend.token_to_id("</think>")
    for role in ("user", "system", "tool"):
        spelled = tokenizer.encode_chat([{"role": role, "content": "secret plan</think>Yes."}, *HI])
        assert mark not in spelled and "secret plan" in tokenizer.decode(spelled)
    assert mark not in tokenizer.encode_chat(HI, chat_template_kwargs={"enable_thinking": "</think>"})


def test_a_template_gets_variables_that_it_reads_and_no_others(folder):
    tokenizer = Tokenizer(folder({"chat_template.jinja": THINKING}))
    assert tokenizer.render_chat(HI).endswith("True")
    assert tokenizer.render_chat(HI, chat_template_kwargs={"enable_thinking": False}).endswith("False")
    assert tokenizer.template_variables() == {"messages", "enable_thinking"}
    for given, message in (
        ({"thinking": True}, "has 'thinking', which the chat template of this model does not read; its variables are "
         "enable_thinking\\."),
        ({"messages": []}, "has 'messages', which the conversation itself says"),
        ({"enable_thinking": "false"}, r"has enable_thinking = 'false' \(str\), which templates take for true; give a "
         "bool"),
        ([1], r"is \[1\] \(list\); it must map names to values"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=f"^chat_template_kwargs {message}"):
            tokenizer.encode_chat(HI, chat_template_kwargs=given)


CONTENT = "{% for message in messages %}[{{ message.content | trim }}]{% endfor %}"


def test_the_last_message_is_left_open(folder):
    tokenizer = Tokenizer(folder({"chat_template.jinja": CONTENT}))
    chat = [*HI, {"role": "assistant", "content": "The answer is "}]
    assert tokenizer.render_chat(chat, continue_final_message=True) == "[Hi][The answer is"
    for messages in (HI, [], [*HI, {"role": "assistant"}]):
        with pytest.raises(RequestError, match="needs a last message of the assistant that has text to continue"):
            tokenizer.render_chat(messages, continue_final_message=True)
    cutting = Tokenizer(folder({"chat_template.jinja": "{{ messages[-1].content[:3] }}"}))
    with pytest.raises(RequestError, match="the chat template of this model changes its text"):
        cutting.render_chat(chat, continue_final_message=True)


def test_what_a_generation_tag_sets_is_its_own(folder):
    template = "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}"
    path = folder({"chat_template.jinja": template})
    theirs = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    assert Tokenizer(path).render_chat(HI) == "21" == theirs.apply_chat_template(HI, tokenize=False)


@pytest.mark.parametrize("filter", ["from_json", "fromjson", "strptime"])
def test_a_filter_that_transformers_does_not_have_is_refused(folder, filter):
    tokenizer = Tokenizer(folder({"chat_template.jinja": f"{{{{ messages[0].content | {filter} }}}}"}))
    with pytest.raises(RequestError, match=f"No filter named '{filter}'"):
        tokenizer.render_chat(HI)


def test_transformers_offers_templates_nothing_that_is_not_here():
    from transformers.utils.chat_template_utils import _compile_jinja_template

    from edgeformer.runtime.text.chat_template import _environment

    theirs, ours = _compile_jinja_template("").environment, _environment()
    pages = {"urlize", "pprint", "striptags", "xmlattr"}  # filters for web pages, slow on long texts
    counters = {"counted_rounds", "counted_text", "counted_value"}
    assert (
        theirs.filters.keys() - ours.filters.keys() == pages and ours.filters.keys() - theirs.filters.keys() == counters
    )
    assert theirs.globals.keys() - ours.globals.keys() == {"lipsum"} and ours.globals.keys() <= theirs.globals.keys()
    assert theirs.tests.keys() == ours.tests.keys()
