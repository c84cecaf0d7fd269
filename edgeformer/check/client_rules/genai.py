"""onnxruntime-genai, which reads genai_config.json, and the shapes of caches from the graph.

Source: `src/config.cpp` and `src/models/kv_cache.cpp` of onnxruntime-genai 0.18, and runs of it on folders with one
fault each.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from edgeformer.check.client_rules import genai_keys as keys
from edgeformer.check.client_rules.genai_pictures import ROWS, is_seeing, picture_findings, text_findings
from edgeformer.check.finding import Finding, error, unknown, warning
from edgeformer.check.folder import GENAI_CONFIG, TOKENIZER, TOKENIZER_CONFIG, Folder
from edgeformer.check.graph_facts import GraphFacts
from edgeformer.check.kernel_rules import genai_library_findings
from edgeformer.check.session_rules import session_findings
from edgeformer.check.tensor_facts import TensorFacts, find_pasts
from edgeformer.documents.schema import MOST_LAYERS

NAMES = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "position_ids": "position_ids",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
    "past_conv_names": "past_key_values.%d.conv_state",
    "past_recurrent_names": "past_key_values.%d.recurrent_state",
    "logits": "logits",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
    "present_conv_names": "present.%d.conv_state",
    "present_recurrent_names": "present.%d.recurrent_state",
}
"""Default names of tensors, where the config has none."""

STATES = ("key", "value", "conv", "recurrent")
FULL = "full_attention"
"""onnxruntime-genai's word for a layer with keys and values; it gives a convolution state to any other layer."""

TOKENIZERS = ("BPE", "Unigram")


def genai_findings(folder: Folder) -> Iterator[Finding]:
    """Yield what keeps onnxruntime-genai from running a folder."""
    config = folder.document(GENAI_CONFIG)
    if not config:
        decoders = "" if folder.kind == "decoder" else "; it runs decoders only"
        yield error(f"There is no {GENAI_CONFIG} that can be read{decoders}.")
        return
    wrong = list(_keys(config, keys.ROOT, ""))
    yield from wrong
    if wrong:
        return
    model, search = config.get("model", {}), config.get("search", {})
    sees = is_seeing(model)
    if not sees:
        yield from text_findings(folder)
    yield from _type(model)
    yield from _tokenizer(folder)
    yield from _providers(model)
    yield from genai_library_findings(folder)
    file = model.get("decoder", {}).get("filename")
    graph = folder.graphs.get(file or "")
    if file in folder.ort_graphs:
        yield unknown(f"{file} is in ORT format and was not checked.")
        return
    if graph is None:
        named = f"names {file}, which is not there" if file else "names no graph (model.decoder.filename)"
        yield error(f"{GENAI_CONFIG} {named}.", "Name it relative to this folder: onnx/model.onnx")
        return
    yield from session_findings(folder, graph)
    if sees:
        yield from picture_findings(folder, model, graph)
    yield from _lengths(model, search, graph)
    yield from _vocabulary(model, graph)
    yield from _names(model, graph)
    yield from _caches(model["decoder"], search, graph)


def _keys(config: dict[str, Any], schema: keys.Schema, path: str) -> Iterator[Finding]:
    """Yield keys that it does not know, and values of wrong types; it stops at the first of them."""
    for key, value in config.items():
        place, kind = f"{path}{key}", schema.get(key, schema.get("*"))
        if kind is None:
            # At the top level, it ignores unknown keys whose value is not an object or list.
            if path or isinstance(value, dict | list):
                near = get_close_matches(key, schema, 1)
                hint = f"It knows {near[0]}; else remove it." if near else "Remove it."
                yield error(
                    f"{GENAI_CONFIG} has the key {place}, which it does not know; this is an error for it.", hint
                )
        elif isinstance(kind, dict):
            if isinstance(value, dict):
                yield from _keys(value, kind, f"{place}.")
            else:
                yield error(f"{GENAI_CONFIG}: {place} is {value!r}; it must be an object.")
        elif not _is(value, kind):
            yield error(f"{GENAI_CONFIG}: {place} is {value!r}; it must be {kind}.")


def _is(value: Any, kind: str) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        keys.INTEGER: number and value == int(value),
        keys.NUMBER: number,
        keys.BOOL: isinstance(value, bool),
        keys.TEXT: isinstance(value, str),
        keys.LIST: isinstance(value, list),
        keys.ANYTHING: True,
    }[kind]


def _type(model: dict[str, Any]) -> Iterator[Finding]:
    model_type, decoder = model.get("type"), model.get("decoder", {})
    layers, types = decoder.get("num_hidden_layers", 0), len(decoder.get("layer_types", []))
    if model_type in keys.CONV_TYPES and types != layers:
        yield error(f"{GENAI_CONFIG} has {types} model.decoder.layer_types for {layers} layers.", "Name one per layer.")
    if model_type in keys.OTHER_TYPES:
        yield unknown(
            f"{GENAI_CONFIG} has the type {model_type!r}, which has another kind of graphs or caches.",
            "Every graph that keeps the contract runs as the type 'decoder'.",
        )
    elif model_type not in keys.DECODER_TYPES | keys.PICTURE_TYPES:
        yield error(
            f"{GENAI_CONFIG} has the type {model_type!r}, which it does not know.", "Set model.type to 'decoder'."
        )


def _tokenizer(folder: Folder) -> Iterator[Finding]:
    if TOKENIZER not in folder.files:
        return
    if TOKENIZER_CONFIG not in folder.files:
        yield error(f"There is no {TOKENIZER_CONFIG}, without which it opens no tokenizer.", "Copy the checkpoint's.")
    model = folder.document(TOKENIZER).get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if kind not in TOKENIZERS:
        yield warning(f"Its tokenizer supports {' and '.join(TOKENIZERS)}, not {kind}: pass token ids.")


def _providers(model: dict[str, Any]) -> Iterator[Finding]:
    for options in model.get("decoder", {}).get("session_options", {}).get("provider_options", []):
        for name in options:
            if name.lower() != "cpu":
                yield warning(f"{GENAI_CONFIG} requires {name}: only builds of onnxruntime-genai with it load this.")


def _lengths(model: dict[str, Any], search: dict[str, Any], graph: GraphFacts) -> Iterator[Finding]:
    context, longest = model.get("context_length", 0), search.get("max_length", 0)
    if context <= 0:
        yield error(f"{GENAI_CONFIG}: model.context_length is {context}; it must be greater than 0.")
    if graph.positions is not None and context > graph.positions:
        yield error(
            f"{GENAI_CONFIG} declares a context of {context:,} tokens, and the tables of positions in {graph.file} "
            f"have {graph.positions:,} rows: token {graph.positions + 1:,} fails.",
            f"Set model.context_length to {graph.positions}.",
        )
    if longest > context > 0:
        yield error(
            f"{GENAI_CONFIG}: search.max_length is {longest:,}, more than model.context_length, {context:,}.",
            "Lower it.",
        )


def _vocabulary(model: dict[str, Any], graph: GraphFacts) -> Iterator[Finding]:
    size, logits = model.get("vocab_size", 0), graph.outputs.get("logits")
    if size < 1:
        yield error(f"{GENAI_CONFIG}: model.vocab_size is {size}; it must be 1 or greater.")
        return
    given = logits.dims[-1] if logits and logits.dims else None
    if isinstance(given, int) and given != size:
        yield error(
            f"{GENAI_CONFIG}: model.vocab_size is {size:,}, and {graph.file} returns logits of {given:,}.",
            f"Set it to {given}.",
        )
    ends = model.get("eos_token_id", [])
    outside = [token for token in (ends if isinstance(ends, list) else [ends]) if not 0 <= token < size]
    if outside:
        yield error(f"{GENAI_CONFIG}: model.eos_token_id {outside[0]} is not below model.vocab_size, {size:,}.")


def _names(model: dict[str, Any], graph: GraphFacts) -> Iterator[Finding]:
    """Yield tensors that the graph lacks, by the names in the config, and inputs that genai does not provide."""
    decoder = model["decoder"]
    names = NAMES | decoder.get("inputs", {}) | decoder.get("outputs", {})
    kept = list(_kept(model, find_pasts(graph.inputs, {word: names[f"past_{word}_names"] for word in STATES})))
    pasts, presents = (
        [names[f"{end}_{word}_names"].replace("%d", str(layer)) for layer, word in kept] for end in ("past", "present")
    )
    for what, found, needed in (
        ("input", graph.inputs, [ROWS if is_seeing(model) else names["input_ids"], *pasts]),
        ("output", graph.outputs, [names["logits"], *presents]),
    ):
        missing = [name for name in needed if name not in found]
        if missing:
            yield error(
                f"{graph.file} has no {what} {', '.join(missing)}.",
                f"Rename it, or set its name in model.decoder.{what}s of {GENAI_CONFIG}.",
            )
    given = {*names.values(), *decoder.get("inputs", {}).values(), *pasts}
    requires = [name for name in graph.inputs if name not in given]
    if requires:
        states = [name for name in requires if name in graph.pasts]
        yield error(
            f"{graph.file} requires {', '.join(requires)}, which it does not provide.",
            "Export the model again, for a genai_config.json that names its states." if states else "",
        )
    fed = [(word, graph.inputs.get(name)) for (_, word), name in zip(kept, pasts, strict=True)]
    yield from _shapes(decoder, [(word, tensor) for word, tensor in fed if tensor is not None])


def _kept(model: dict[str, Any], found: dict[int, dict[str, TensorFacts]]) -> Iterator[tuple[int, str]]:
    """Yield the states that it keeps: layer and word.

    It finds keys and values, and recurrent states, by the names of inputs. A layer with a recurrent state has one of a
    convolution. For a convolution alone it must be told the types of layers, which then say the rest, too.
    """
    decoder = model["decoder"]
    layer_types = decoder.get("layer_types", [])
    layers = range(max(found, default=min(decoder.get("num_hidden_layers", 0), MOST_LAYERS) - 1) + 1)
    for layer in range(len(layer_types)) if layer_types else layers:
        own = found.get(layer, {})
        is_recurrent = "recurrent" in own and model["type"] not in keys.CONV_TYPES
        has_keys = layer_types[layer] == FULL if layer_types else {"key", "value"} & own.keys() or not found
        has_conv = layer_types[layer] != FULL if layer_types else is_recurrent
        for word, has in zip(STATES, (has_keys, has_keys, has_conv, is_recurrent), strict=True):
            if has:
                yield layer, word


def _shapes(decoder: dict[str, Any], kept: list[tuple[str, TensorFacts]]) -> Iterator[Finding]:
    """Yield states of another shape than it gives them: one for all convolutions, and one for all recurrent states.

    Keys and values may differ by layer, but not where the config tells the types of layers; they are as it says then.
    """
    for word, what in (("conv", "convolution"), ("recurrent", "recurrent")):
        shapes = {tensor.dims[1:] for own, tensor in kept if own == word}
        if len(shapes) > 1:
            yield error(f"It gives all layers the {what} state of the first, and here they differ.")
        symbols = {dim for shape in shapes for dim in shape if not isinstance(dim, int)}
        if symbols:
            yield error(f"It needs numbers for the sizes of {what} states, and here is {symbols.pop() or 'nothing'!r}.")
    told = (decoder.get("num_key_value_heads"), decoder.get("head_size"))
    other = {(tensor.size(1), tensor.size(3)) for word, tensor in kept if word in ("key", "value")} - {told}
    if decoder.get("layer_types") and other:
        yield error(
            f"It gives all layers keys and values of {told[0]} heads of {told[1]}, as {GENAI_CONFIG} says, and a layer "
            "has {} of {}.".format(*other.pop())
        )


def _caches(decoder: dict[str, Any], search: dict[str, Any], graph: GraphFacts) -> Iterator[Finding]:
    """Yield what is wrong with caches: symbols without a size in the config, and the use of one shared buffer."""
    if not graph.past_shape:
        return
    _, heads, length, head_dim = graph.past_shape
    for value, key in ((heads, "num_key_value_heads"), (head_dim, "head_size")):
        if not isinstance(value, int) and not decoder.get(key):
            yield error(
                f"{graph.file} has the symbol {value!r} where its caches should have a number, and {GENAI_CONFIG} no "
                f"model.decoder.{key}."
            )
    if isinstance(length, int) and graph.cache_form != "any":
        yield unknown(f"{graph.file} has a fixed length of {length} tokens; whether that works depends on the graph.")
        return
    shares = search.get("past_present_share_buffer", False) or isinstance(length, int)
    if shares and graph.cache_form == "dynamic":
        yield error(
            f"It binds one buffer as past and present, and {graph.file} returns a present longer than its past: it "
            "may crash.",
            f"Set search.past_present_share_buffer to false in {GENAI_CONFIG}.",
        )
    if not shares and graph.cache_form == "static":
        yield error(
            f"It starts with an empty cache, and {graph.file} needs a preallocated one.",
            f"Set search.past_present_share_buffer to true in {GENAI_CONFIG}.",
        )
    if isinstance(length, int) and search.get("max_length", 0) > length:
        yield warning(f"{graph.file} has room for {length} tokens, fewer than search.max_length: longer texts fail.")
