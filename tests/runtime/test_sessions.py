"""A conversation is read once: by the next turn, by the next process, and never from a file that is not its own."""

import json
import shutil

import numpy as np
import pytest

from edgeformer.errors import RequestError
from edgeformer.runtime import load
from edgeformer.runtime.prefixes.session_file import LARGEST_HEADER

QUESTION = {"role": "user", "content": "What is 345 + 278?"}
OPENING = [{"role": "user", "content": "Tell me a story about a dog and a little cat."}]


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load(tiny_llama_bundle, "cpu", 1)


@pytest.fixture(scope="module")
def conversation(model):
    """A conversation of one turn and a question, and the answer to it of a model that keeps nothing."""
    bare = load(model.folder, "cpu", 1)
    bare.prefix_cache.max_bytes = 0
    told = bare.chat(OPENING, max_new_tokens=40).finish()
    messages = [*OPENING, {"role": "assistant", "content": told.text}, QUESTION]
    answer = bare.chat(messages).finish()
    assert (told.cached_tokens, answer.cached_tokens) == (0, 0)
    return messages, told, answer


@pytest.fixture(scope="module")
def session(model, conversation, tmp_path_factory):
    """A file with the conversation."""
    file = tmp_path_factory.mktemp("sessions") / "dog.session"
    model.prefix_cache.clear()
    model.chat(conversation[0]).finish()
    model.save_session(file, conversation[0])
    return file


def test_the_second_turn_reads_only_what_is_new(model, conversation):
    messages, told, alone = conversation
    model.prefix_cache.clear()
    first = model.chat(OPENING, max_new_tokens=40).finish()
    second = model.chat(messages).finish()
    assert (first.text, second.token_ids) == (told.text, alone.token_ids)
    # All but the answer's last token, which was never run; its text has the tokens that were generated.
    assert second.cached_tokens == first.prompt_tokens + len(first.token_ids) - 1
    assert second.prompt_tokens == alone.prompt_tokens


def test_drafts_come_from_the_whole_prompt(model, conversation):
    messages, _, alone = conversation
    model.chat(messages).finish()
    again = model.chat(messages, prompt_lookup_num_tokens=4).finish()
    assert again.token_ids == alone.token_ids
    assert again.cached_tokens == again.prompt_tokens - 1 and again.speculation is not None


def test_an_answer_that_is_cancelled_is_kept(model):
    model.prefix_cache.clear()
    stream = model.chat(OPENING, max_new_tokens=40)
    said = next(stream) + next(stream)
    stream.cancel()
    result = stream.finish()
    assert (result.finish_reason, result.text) == ("cancelled", said)
    assert list(stream) == []
    messages = [*OPENING, {"role": "assistant", "content": said}, QUESTION]
    kept = result.prompt_tokens + len(result.token_ids) - 1
    assert kept - 2 <= model.chat(messages).finish().cached_tokens <= kept


def test_a_session_goes_on_in_another_process(model, conversation, session):
    messages, _, alone = conversation
    other = load(model.folder, "cpu", 1)
    assert other.load_session(session) == messages
    answer = other.chat(messages).finish()
    assert answer.token_ids == alone.token_ids
    assert answer.cached_tokens == answer.prompt_tokens - 1
    assert [file.name for file in session.parent.iterdir()] == ["dog.session"]  # nothing temporary stays


def test_a_session_is_a_file_of_safetensors(session):
    from safetensors.numpy import load_file

    arrays = load_file(session)
    assert arrays["tokens"].dtype == np.int64 and arrays["past_key_values.0.key"].shape[1] == len(arrays["tokens"])


def test_wrong_content_is_seen(model, conversation, session, tmp_path):
    """Negative control: were the keys and values of another text read, the answer would be another."""
    content = session.read_bytes()
    wrong = tmp_path / "wrong"
    wrong.write_bytes(content[:-60_000] + np.random.default_rng(0).normal(size=15_000).astype(np.float32).tobytes())
    other = load(model.folder, "cpu", 1)
    other.load_session(wrong)
    assert other.chat(conversation[0]).finish().token_ids != conversation[2].token_ids


def edit(change):
    """Return a function that changes the header of a session, and keeps the rest."""

    def edited(content):
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + content[8 + length :]

    return edited


def entry(name, **fields):
    return edit(lambda header: header[name].update(fields))


HOSTILE = {
    "empty": (lambda content: b"", "it has no header of a session"),
    "pickle": (lambda content: b"\x80\x04\x95" + content, "it has no header of a session"),
    "cut": (lambda content: content[:-5], "bytes, and its header says"),
    "longer": (lambda content: content + b"more", "bytes, and its header says"),
    "huge header": (lambda content: (LARGEST_HEADER + 1).to_bytes(8, "little") + content[8:], "it has no header"),
    "no JSON": (lambda content: content[:8] + b"x" + content[9:], "its header is no JSON"),
    "deep JSON": (lambda content: (10**5).to_bytes(8, "little") + b"[" * 10**5, "its header is no JSON"),
    "list": (lambda content: (2).to_bytes(8, "little") + b"[]", "its header is no JSON object"),
    "other format": (edit(lambda header: header["__metadata__"].update(format="pt")), "does not say edgeformer"),
    "no metadata": (edit(lambda header: header.pop("__metadata__")), "does not say edgeformer.session"),
    "newer": (edit(lambda header: header["__metadata__"].update(version="3")), "version '3'; this reads version 2"),
    "many tokens": (entry("tokens", shape=[10**12]), "it must have 1 to 1024 tokens"),
    "true tokens": (entry("tokens", shape=[True]), "it must have 1 to 1024 tokens"),
    "no tokens": (edit(lambda header: header.pop("tokens")), "it must have 1 to 1024 tokens"),
    "other length": (entry("tokens", shape=[7]), "its tensors are not those of 7 tokens"),
    "other type": (entry("past_key_values.0.key", dtype="F16"), "its tensors are not those of"),
    "overlap": (entry("past_key_values.1.key", data_offsets=[0, 8]), "its tensors are not those of"),
    "one less": (edit(lambda header: header.pop("past_key_values.0.key")), "its tensors are not those of"),
    "one more": (edit(lambda header: header.update(logits=header["tokens"])), "its tensors are not those of"),
    "no kind": (edit(lambda header: header["__metadata__"].pop("kind")), "of which kind its keys and values are"),
    "messages": (edit(lambda header: header["__metadata__"].update(messages="[3]")), "no list of roles and contents"),
    "bad messages": (edit(lambda header: header["__metadata__"].update(messages="{")), "its messages are no JSON"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_damaged_or_hostile_file_is_refused(model, session, tmp_path, change, message):
    file = tmp_path / "hostile"
    file.write_bytes(change(session.read_bytes()))
    model.prefix_cache.clear()
    with pytest.raises(RequestError, match=message):
        model.load_session(file)
    assert model.prefix_cache.bytes == 0


def test_tokens_outside_of_the_vocabulary_are_refused(model, session, tmp_path):
    content = session.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    file = tmp_path / "tokens"
    file.write_bytes(content[:start] + np.int64(10**9).tobytes() + content[start + 8 :])
    with pytest.raises(RequestError, match="token ids outside 0 to"):
        model.load_session(file)


def test_another_bundle_is_refused(model, session, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(model.folder, folder)
    manifest = json.loads((folder / "edgeformer.json").read_text())
    manifest["files"]["tokenizer.json"]["sha256"] = "0" * 64
    (folder / "edgeformer.json").write_text(json.dumps(manifest))
    with pytest.raises(RequestError, match="is a session of another bundle: its graphs, weights or tokenizer differ"):
        load(folder, "cpu", 1).load_session(session)
    wrong = tmp_path / "precision"
    wrong.write_bytes(edit(lambda header: header["__metadata__"].update(precision="int4"))(session.read_bytes()))
    with pytest.raises(RequestError, match="is a session of a bundle in 'int4', and this one is in fp32"):
        model.load_session(wrong)


def test_what_cannot_be_read_or_written_is_said(model, tmp_path):
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        model.load_session(tmp_path / "none")
    model.chat([QUESTION]).finish()
    with pytest.raises(RequestError, match="cannot be written to"):
        model.save_session(tmp_path / "no folder" / "file")
    model.prefix_cache.clear()
    with pytest.raises(RequestError, match="there is no session to save"):
        model.save_session(tmp_path / "file")
