"""JSON documents of anybody are read within limits, and errors name the file and what is wrong with it."""

import json
import math

import pytest

from edgeformer.documents import json_document
from edgeformer.documents.json_document import is_contained, is_inside, parse, read_document, read_object
from edgeformer.errors import LONGEST, BundleError, ConfigError, EdgeformerError

WRONG = [
    (b"[" * 100_000, r"more than 100 levels"),
    (b'{"a":' * 101 + b"1" + b"}" * 101, r"more than 100 levels"),
    (b'{"a": "\\ud800"}', r"half of a character \(a lone surrogate\)"),
    (b'{"\\udfff": 1}', r"half of a character \(a lone surrogate\)"),
    (b'{"a": "\xff"}', r"it is not UTF-8 \(invalid start byte at byte 7\)"),
    (b"", r"it is not valid JSON"),
    (b'{"a": 1', r"it is not valid JSON"),
    (b"\xef\xbb\xbf{}", r"it is not valid JSON"),
    (b"[1]", r"it must hold a JSON object"),
    (b"null", r"it must hold a JSON object"),
]


@pytest.mark.parametrize(("content", "message"), WRONG, ids=range(len(WRONG)))
def test_what_is_no_object_is_one_sentence_that_names_the_file(tmp_path, content, message):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(BundleError, match=rf"config\.json cannot be read: .*{message}"):
        read_object(file, BundleError)


def test_documents_within_the_limits_are_read(tmp_path):
    file = tmp_path / "modules.json"
    file.write_text('[{"a": "é \\ud83d\\ude00", "b": [1, -2.5, true, null]}]')
    assert read_document(file, list) == [{"a": "é 😀", "b": [1, -2.5, True, None]}]
    assert parse(b"[" * 99 + b"]" * 99)


def test_numbers_beyond_64_bits_are_floats_and_never_counts():
    large = parse(f"[{2**63 - 1}, {-(2**63)}, {2**63}, 1{'0' * 30}, {'9' * 5000}, -{'9' * 5000}]")
    assert large[:2] == [2**63 - 1, -(2**63)]
    assert all(type(each) is float for each in large[2:])
    assert large[2:4] == [2.0**63, 1e30]
    assert large[4:] == [math.inf, -math.inf]


def test_a_file_that_is_too_large_or_none_is_named(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    with pytest.raises(ConfigError, match=r"config\.json cannot be read: No such file or directory\.$"):
        read_object(file)
    with pytest.raises(ConfigError, match="cannot be read: it must be a file of at most 256 MiB"):
        read_object(tmp_path)
    file.write_text(json.dumps({"a": "b" * 100}))
    monkeypatch.setattr(json_document, "LARGEST", 50)
    with pytest.raises(ConfigError, match="it must be a file of at most"):
        read_object(file)


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("onnx/model.onnx", True), ("a..b", True), ("", False), (".", False), ("..", False), ("a/../../b", False),
        ("/etc/passwd", False), ("C:a", False), ("a\\b", False), ("a\0", False),
    ],
)  # fmt: skip
def test_names_that_lead_out_of_a_folder(name, inside):
    assert is_inside(name) is inside


def test_links_out_of_a_folder_and_those_of_the_hubs_cache(tmp_path):
    revision = tmp_path / "models--a--b" / "snapshots" / "123"
    blobs = tmp_path / "models--a--b" / "blobs"
    revision.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "file").write_text("")
    (tmp_path / "secret").write_text("")
    (revision / "own").write_text("")
    (revision / "linked").symlink_to("own")
    (revision / "cached").symlink_to("../../blobs/file")
    (revision / "escaped").symlink_to("../../../secret")
    contained = {name: is_contained(revision / name, revision) for name in ("own", "linked", "cached", "escaped")}
    assert contained == {"own": True, "linked": True, "cached": True, "escaped": False}


def test_an_error_that_cites_a_whole_file_is_cut():
    error = str(EdgeformerError("a" * 100_000))
    assert len(error) < LONGEST + 50
    assert error.endswith("… (97,000 more characters)")
    assert str(EdgeformerError("short")) == "short"
