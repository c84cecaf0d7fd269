"""The head of a layer that drafts, over the first tokens of a large vocabulary.

    MatMulNBits(state, W [248320, …]) → logits [248320]     becomes     MatMulNBits(state, W[:32768]) → logits [32768]

Most of what a drafted token takes is the head: of Qwen3.5-0.8B it has 254 MB in 8 bits, and the layer 13. A draft need
not be right, and tokenizers number what they merge in the order of how often it came, so the first tokens are most of
a text. The rows of a matrix lie one after the other in a file, so the first ones are a shorter piece of it: nothing is
stored or copied. Source of the idea: FR-Spec (arXiv 2502.14856), which ranks tokens by counts of a text.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgeformer.contract import protobuf as onnx
from edgeformer.contract.protobuf import (
    read_fields,
    read_numbers,
    read_texts,
    replaced_fields,
    value_of_width,
    written_field,
)
from edgeformer.runtime.sessions.graphs.optional_inputs import content_of

FIRST_TOKENS = 32_768
"""Tokens of such a head. Of Qwen's (151,643 without special ones) the first 32,768 are 94 % of an English text, 93 % of
Python and 95 % of C++; with 16,384 and 65,536, drafts of three tokens that come true with a probability of 0.8 where
they can would give 0.98 and 0.96 of the gain (Qwen3.5-0.8B's geometry, AMD Zen 4)."""

LEAST_SHARE = 0.5
"""Least share of a prompt's tokens that are among the first. By the costs of drafts and such a probability, drafts over
all tokens would gain more below 0.56; special tokens of a chat are not among the first. Of a Chinese text it is 0.31
with that tokenizer; of one whose tokens stand in another order it would be low, too."""

HEADS = {"MatMulNBits", "MatMulNBitsBias", "TransposedMatMul"}
"""Products whose matrices have a row, or rows of blocks, for each output."""

LOGITS = "logits"
OUTPUTS = "N"
"""The attribute of a product of integers with the number of its outputs."""

EXTERNAL = 1
"""The place of a tensor whose numbers are in a file of their own, in onnx.proto."""


def are_mostly_first(tokens: Sequence[int]) -> bool:
    """Return whether a prompt has so many of the first tokens that drafts of these alone gain more."""
    return float(np.mean(np.asarray(tokens) < FIRST_TOKENS)) >= LEAST_SHARE


def with_first_tokens(path: Path, vocab_size: int) -> bytes | None:
    """Return the content of a graph whose logits are those of the first tokens; None for a head of another form.

    vocab_size: tokens of its logits; None is returned where they are few, too, and for a damaged graph, of which
    onnxruntime says what is wrong.
    """
    content = content_of(path) if vocab_size > FIRST_TOKENS else None
    if content is None:
        return None
    model = memoryview(content)
    try:
        graphs = [part for number, part in read_fields(model) if number == onnx.MODEL_GRAPH]
        changed = _with_first_tokens(graphs[0], vocab_size)
        if changed is None:
            return None
        return replaced_fields(model, lambda number, _: changed if number == onnx.MODEL_GRAPH else None)
    except (IndexError, ValueError):
        return None


def _with_first_tokens(graph: memoryview, vocab_size: int) -> bytes | None:
    """Return a graph of fewer logits, or None. Raises ValueError and IndexError for a damaged one."""
    fields = list(read_fields(graph))
    heads = [
        node for number, node in fields if number == onnx.GRAPH_NODE and LOGITS in read_texts(node, onnx.NODE_OUTPUT)
    ]
    if len(heads) != 1 or "".join(read_texts(heads[0], onnx.NODE_OP_TYPE)) not in HEADS:
        return None
    stored = {
        name: part
        for number, part in fields
        if number == onnx.GRAPH_INITIALIZER
        for name in read_texts(part, onnx.TENSOR_NAME)
    }
    read = {name for name in read_texts(heads[0], onnx.NODE_INPUT)[1:] if name}
    shorter = {name: _first_rows(stored[name], vocab_size) for name in read & stored.keys()}
    if not read or any(shorter.get(name) is None for name in read):
        return None

    def replaced(number: int, content: memoryview) -> bytes | None:
        if number == onnx.GRAPH_NODE and content == heads[0]:
            return _shorter_product(content, {name: _shorter_name(name) for name in read})
        if number == onnx.GRAPH_OUTPUT and read_texts(content, onnx.VALUE_NAME) == [LOGITS]:
            return value_of_width(content, FIRST_TOKENS)
        return None

    added = b"".join(written_field(onnx.GRAPH_INITIALIZER, tensor) for tensor in shorter.values() if tensor is not None)
    return replaced_fields(graph, replaced) + added


def _shorter_name(name: str) -> str:
    return f"{name}.first_tokens"


def _first_rows(tensor: memoryview, vocab_size: int) -> bytes | None:
    """Return an initializer of the first rows of another one; None for one that is not in a file of its own."""
    rows, *others = read_numbers(tensor, onnx.TENSOR_DIMS) or [0]
    entries = [part for number, part in read_fields(tensor) if number == onnx.TENSOR_EXTERNAL]
    place = {read_texts(entry, onnx.ENTRY_KEY)[0]: read_texts(entry, onnx.ENTRY_VALUE)[0] for entry in entries}
    # Scales may have one dimension, of as many numbers for each token.
    if not rows or rows % vocab_size or not {"location", "offset", "length"} <= place.keys():
        return None
    place["length"] = str(int(place["length"]) // vocab_size * FIRST_TOKENS)
    (name,) = read_texts(tensor, onnx.TENSOR_NAME)
    parts = [written_field(onnx.TENSOR_DIMS, size) for size in (rows // vocab_size * FIRST_TOKENS, *others)]
    parts += [written_field(onnx.TENSOR_TYPE, each) for each in read_numbers(tensor, onnx.TENSOR_TYPE)]
    parts.append(written_field(onnx.TENSOR_NAME, _shorter_name(name)))
    for key, value in place.items():
        entry = written_field(onnx.ENTRY_KEY, key) + written_field(onnx.ENTRY_VALUE, value)
        parts.append(written_field(onnx.TENSOR_EXTERNAL, entry))
    return b"".join([*parts, written_field(onnx.TENSOR_LOCATION, EXTERNAL)])


def _shorter_product(node: memoryview, names: Mapping[str, str]) -> bytes:
    """Return a product with other matrices, of as many outputs as there are first tokens. names: of what it reads."""

    def replaced(number: int, content: memoryview) -> bytes | None:
        if number == onnx.NODE_INPUT:
            name = str(content, "utf-8")
            return names.get(name, name).encode()
        if number == onnx.NODE_ATTRIBUTE and read_texts(content, onnx.ATTRIBUTE_NAME) == [OUTPUTS]:
            number_of = written_field(onnx.ATTRIBUTE_NAME, OUTPUTS) + written_field(onnx.ATTRIBUTE_INT, FIRST_TOKENS)
            return number_of + written_field(onnx.ATTRIBUTE_TYPE, onnx.TYPE_INT)
        return None

    return replaced_fields(node, replaced)
