"""genai_config.json, with which onnxruntime-genai loads the same folder.

Source: tested with onnxruntime-genai 0.18, which refuses unknown keys. `type: decoder` stands for any decoder-only
graph. The names of keys and values are its defaults. It reads from the graph which layers keep them, and the shapes.
"""

from typing import Any

from edgeformer.client_files.genai_pictures import decoder_section, picture_sections, picture_type
from edgeformer.contract.tensors import CacheGeometry, ConvState, KeyValueState, RecurrentState, State
from edgeformer.manifest.manifest import Manifest

MAX_LENGTH = 4096
"""Tokens that onnxruntime-genai allocates its cache for; a user may raise it up to context_length."""

FULL = "full_attention"
"""onnxruntime-genai's word for a layer with keys and values; it gives a convolution state to any other layer."""


def genai_obstacle(cache: CacheGeometry) -> str | None:
    """Return why onnxruntime-genai cannot keep these states, as a sentence; None if it can."""
    for kind, what in ((ConvState, "convolution"), (RecurrentState, "recurrent")):
        if len(_kept(cache, kind)) > 1:
            return f"It gives all layers the {what} state of the first, and here they differ."
    if any(_has(states, RecurrentState) and not _has(states, ConvState) for states in cache.layers):
        return "It wants a convolution state in every layer with a recurrent state."
    if not _has_conv_alone(cache):
        return None
    if any(_has(states, ConvState) == _has(states, KeyValueState) for states in cache.layers):
        return "With convolution states alone, it wants every layer to have either one of them or keys and values."
    if len(_kept(cache, KeyValueState)) > 1:
        return "With convolution states alone, it gives all layers keys and values of one shape, and here they differ."
    return None


def runs_in_genai(manifest: Manifest) -> bool:
    """Return whether onnxruntime-genai can run a bundle, which then has a genai_config.json: it runs decoders only."""
    return manifest.form == "decoder" and genai_obstacle(manifest.cache) is None


def genai_config(manifest: Manifest, hf_config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the content of genai_config.json, for a cache that has no `genai_obstacle`.

    hf_config: config.json, of which it is told the type and the tokens of a model that sees.
    """
    model, tokens, cache = manifest.model, manifest.tokens, manifest.cache
    ids: dict[str, Any] = {"eos_token_id": list(tokens.eos)} if tokens.eos else {}
    if tokens.bos is not None:
        ids["bos_token_id"] = tokens.bos
    # onnxruntime-genai requires a padding token. The end of text serves: padding is on the right, behind it.
    ids["pad_token_id"] = tokens.pad if tokens.pad is not None else (tokens.eos or (0,))[0]
    # onnxruntime-genai does not use these widths for such a graph, and a module that is not ours does not tell them.
    stack = None if model is None else model.output_stack
    widths: dict[str, Any] = {} if stack is None else {"hidden_size": stack.hidden_size}
    if stack is not None and stack.attentions:
        widths["num_attention_heads"] = stack.attentions[0].num_heads
    runs_on = manifest.plan.runs_on
    provider_options = [] if runs_on.genai_options is None else [{runs_on.name: dict(runs_on.genai_options)}]
    session = {"provider_options": provider_options}
    sections: dict[str, Any] = {}
    of_pictures: dict[str, Any] = {}
    states = _states(cache)
    if hf_config is not None and "embedding" in manifest.graphs:
        sections, of_pictures = picture_sections(manifest, hf_config, session), decoder_section(manifest)
        states["inputs"] = of_pictures["inputs"] | states.get("inputs", {})
    return {
        "model": {
            "type": (picture_type(hf_config, manifest.pictures) if sections else None) or _type(cache),
            "context_length": manifest.context_length,
            "vocab_size": manifest.vocab_size,
            **ids,
            **sections,
            "decoder": {
                "filename": manifest.graph,
                **_key_value_sizes(cache),
                "num_hidden_layers": cache.num_layers,
                **widths,
                **of_pictures,
                **states,
                "session_options": session,
            },
        },
        "search": {
            "do_sample": False,
            "max_length": min(manifest.context_length, MAX_LENGTH),
            "past_present_share_buffer": manifest.plan.cache_form != "dynamic",
        },
    }


def _type(cache: CacheGeometry) -> str:
    """Return the type under which it keeps these states."""
    return "lfm2" if _has_conv_alone(cache) and not _kept(cache, RecurrentState) else "decoder"


def _key_value_sizes(cache: CacheGeometry) -> dict[str, int]:
    """Return the sizes of keys and values. Where layers differ, they are those of one; it reads the graph then."""
    kept = next((state for states in cache.layers for state in states if isinstance(state, KeyValueState)), None)
    return {} if kept is None else {"head_size": kept.head_dim, "num_key_value_heads": kept.num_kv_heads}


def _states(cache: CacheGeometry) -> dict[str, Any]:
    """Return the names of states of fixed size, and the types of layers where it needs them."""
    names = sorted({tensor.name for tensor in cache.tensors() if not tensor.per_token})
    if not names:
        return {}
    # Its word is `recurrent` for what we and transformers.js call `ssm` in selective state spaces.
    words = {name: "conv" if name == "conv" else "recurrent" for name in names}
    found: dict[str, Any] = {
        "inputs": {f"past_{word}_names": f"past_{name}.%d" for name, word in words.items()},
        "outputs": {f"present_{word}_names": f"present_{name}.%d" for name, word in words.items()},
    }
    if _has_conv_alone(cache):
        found["layer_types"] = ["conv" if _has(states, ConvState) else FULL for states in cache.layers]
    return found


def _has_conv_alone(cache: CacheGeometry) -> bool:
    """Return whether a layer has a convolution state and no recurrent one."""
    return any(_has(states, ConvState) and not _has(states, RecurrentState) for states in cache.layers)


def _kept(cache: CacheGeometry, kind: type[State]) -> set[State]:
    """Return the different states of a kind."""
    return {state for states in cache.layers for state in states if isinstance(state, kind)}


def _has(states: tuple[State, ...], kind: type[State]) -> bool:
    return any(isinstance(state, kind) for state in states)
