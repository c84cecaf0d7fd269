"""Optimum's classes for onnxruntime, which depend on the model_type in config.json.

Source: optimum-onnx 0.1.0, `optimum/onnxruntime/modeling_decoder.py`; transformers 4.57.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from edgeformer.check.client_rules.merged import merged_findings
from edgeformer.check.client_rules.optimum_types import TYPES
from edgeformer.check.finding import Finding, error, unknown
from edgeformer.check.folder import CONFIG, Folder
from edgeformer.check.graph_facts import GraphFacts
from edgeformer.check.session_rules import session_findings
from edgeformer.contract.tensors import KeyValueState
from edgeformer.manifest.graph_forms import ENCODER_GRAPH, MERGED_GRAPH

GIVEN = ("input_ids", "attention_mask", "position_ids", "use_cache_branch")

# Types for which it reads head_dim, and num_key_value_heads. For others it takes hidden_size / heads, and heads.
OWN_HEAD_DIM = frozenset({"gemma", "gemma3_text", "gpt_oss", "nemotron"})
OWN_KV_HEADS = OWN_HEAD_DIM | {
    "arcee", "deepseek_v3", "cohere", "glm", "granite", "helium", "mistral", "llama", "qwen2",
    "qwen3", "qwen3_moe", "smollm3", "stablelm",
}  # fmt: skip


CACHE_TYPES = frozenset({"float", "float16", "int8"})
"""Types of caches that it makes. Source: `TypeHelper` in its `optimum/onnxruntime/utils.py` and `io_binding`."""


def optimum_findings(folder: Folder) -> Iterator[Finding]:
    """Yield what keeps ORTModelForCausalLM and similar classes from running a folder."""
    config = folder.document(CONFIG)
    model_type = config.get("model_type")
    if model_type is None:
        yield error(f"There is no {CONFIG} with a model_type, which it needs.")
        return
    if model_type not in TYPES:
        yield error(f"It requires transformers < 4.58, which does not know the model_type {model_type!r}.")
    if folder.kind == "encoder-decoder":
        yield from _encoder_decoder(folder)
    elif folder.main is None:
        yield error("There is no model.onnx that can be read.", "Export the model again.")
    else:
        yield from session_findings(folder, folder.main)
        if folder.main.pasts:
            yield from _decoder(folder.main, config)


def _decoder(graph: GraphFacts, config: dict[str, Any]) -> Iterator[Finding]:
    # It treats every input with .key or .value in its name as a cache, in the order of the graph.
    requires = [name for name in graph.inputs if name not in GIVEN and not (".key" in name or ".value" in name)]
    if requires:
        yield error(f"{graph.file} requires {', '.join(requires)}, which it does not provide.")
    if "logits" not in graph.outputs:
        yield error(f"{graph.file} has no output logits.")
    if graph.cache_form == "static":
        yield error(
            f"It starts with an empty cache, and {graph.file} needs a preallocated one.",
            "Export with --cache dynamic, or --ops ort.",
        )
    others = {tensor.dtype for tensor in graph.pasts.values()} - CACHE_TYPES
    if others:
        yield error(f"The caches of {graph.file} are {', '.join(sorted(others))}, which it has no torch type for.")
    yield from _cache_shape(graph, config)


def _cache_shape(graph: GraphFacts, config: dict[str, Any]) -> Iterator[Finding]:
    """Yield differences between the cache in the graph and the empty one that it makes from config.json."""
    model_type = config["model_type"]
    made = _kv_heads(config), _head_dim(config)
    kept = [state for states in graph.cache.layers for state in states if isinstance(state, KeyValueState)]
    wanted = ({state.num_kv_heads for state in kept}, {state.head_dim for state in kept})
    for what, makes, sizes in zip(("heads", "numbers per head"), made, wanted, strict=True):
        others = sorted(sizes - {makes, 0})
        if makes is None:
            yield unknown(f"{CONFIG} does not say how many {what} the empty cache of a {model_type} has.")
        elif others:
            yield error(
                f"It makes the empty cache of a {model_type} with {makes} {what}, and {graph.file} has "
                f"{' and '.join(map(str, others))}.",
                "This is its rule for types that are not in its list; there is no setting for it.",
            )


def _kv_heads(config: dict[str, Any]) -> int | None:
    heads, model_type = _first(config, "num_attention_heads", "n_head", "n_heads", "num_heads"), config["model_type"]
    if model_type in OWN_KV_HEADS:
        return config.get("num_key_value_heads")
    if model_type == "falcon" and (config.get("new_decoder_architecture") or not config.get("multi_query", True)):
        return config.get("num_kv_heads", heads)
    if model_type in ("falcon", "gpt_bigcode"):
        return 1 if config.get("multi_query", True) else heads
    return heads


def _head_dim(config: dict[str, Any]) -> int | None:
    if config["model_type"] in OWN_HEAD_DIM:
        return config.get("head_dim")
    heads = _first(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    hidden = _first(config, "hidden_size", "n_embd", "d_model")
    return None if heads is None or hidden is None else hidden // heads


def _first(config: dict[str, Any], *keys: str) -> int | None:
    """Return the first of these fields that is a positive number; its name differs between families."""
    return next((value for key in keys if isinstance(value := config.get(key), int) and value > 0), None)


def _encoder_decoder(folder: Folder) -> Iterator[Finding]:
    for file in (ENCODER_GRAPH, MERGED_GRAPH):
        graph = folder.graph(file)
        if graph is None:
            yield error(
                f"There is no {PurePosixPath(file).name}.", "Export with --ops ort and --provider cpu, which adds it."
            )
        else:
            yield from session_findings(folder, graph)
            if file == MERGED_GRAPH:
                yield from merged_findings(graph)
