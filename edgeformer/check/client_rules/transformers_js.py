"""transformers.js in Node, and in a browser by WebAssembly or WebGPU; it chooses graphs and classes by config.json.

Source: transformers.js 4.3, `src/models/session.js`, `src/models/modeling_utils.js`, `src/utils/model-loader.js` and
`src/utils/dtypes.js`.
"""

from collections.abc import Generator, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

from edgeformer.check.client_rules import transformers_js_types as types
from edgeformer.check.client_rules.merged import merged_findings
from edgeformer.check.client_rules.transformers_js_caches import cache_names
from edgeformer.check.client_rules.transformers_js_media import (
    DECODER,
    EMBED,
    GIVEN_TO_READER,
    Tower,
    is_known,
    states_findings,
    tower_of,
    type_findings,
)
from edgeformer.check.finding import Finding, error, unknown, warning
from edgeformer.check.folder import CONFIG, TOKENIZER, TOKENIZER_CONFIG, Folder
from edgeformer.check.graph_facts import GraphFacts
from edgeformer.check.session_rules import NODE, WEB, session_findings
from edgeformer.check.tensor_facts import is_per_token
from edgeformer.contract.ops import BLOCK_GATHER
from edgeformer.contract.tensors import MEDIA_INPUTS
from edgeformer.manifest.deployment import LARGEST_ARRAY
from edgeformer.manifest.graph_forms import BLOCK_GRAPH
from edgeformer.manifest.providers import CPU, WEBGPU

KEY = "transformers.js_config"
SUFFIXES = {
    "fp32": "", "fp16": "_fp16", "int8": "_int8", "uint8": "_uint8", "q8": "_quantized", "bnb4": "_bnb4", "q4": "_q4",
    "q2": "_q2", "q1": "_q1", "q4f16": "_q4f16", "q2f16": "_q2f16", "q1f16": "_q1f16",
}  # fmt: skip
Device = Literal["node", "wasm", "gpu"]
"""Where it runs graphs: in Node, or in a browser by WebAssembly or WebGPU."""
DEFAULT_DTYPE: dict[Device, str] = {"node": "fp32", "wasm": "q8", "gpu": "fp32"}

# Bytes of WebAssembly's memory, which holds all weights. Source: onnxruntime.ai/docs/tutorials/web/large-models.html
MAX_MEMORY = 2**32

GIVEN_TO_DECODER = ("input_ids", "attention_mask", "position_ids", "num_logits_to_keep", "use_cache_branch")
GIVEN_TO_ENCODER = ("input_ids", "attention_mask", "token_type_ids", *MEDIA_INPUTS)
FLOATS = (*MEDIA_INPUTS, "inputs_embeds")
"""Inputs that are no numbers of tokens."""
ARRAY_TYPES = ("float", "float16", "double", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
"""Data types for which JavaScript has arrays, so that it can make an empty cache."""


class EncoderTask(NamedTuple):
    """A task of encoders: the model_types that it has classes for, and the outputs that these read."""

    types: frozenset[str]
    reads: tuple[str, ...]


ENCODER_TASKS = {
    "ForMaskedLM": EncoderTask(types.MASKED_LM, ("logits",)),
    "ForSequenceClassification": EncoderTask(types.CLASSIFICATION, ("logits",)),
    "ForTokenClassification": EncoderTask(types.TOKEN_CLASSIFICATION, ("logits",)),
    "ForQuestionAnswering": EncoderTask(types.QUESTION_ANSWERING, ("start_logits", "end_logits")),
}
"""Tasks by the ends of the names of transformers' classes."""


def node_findings(folder: Folder) -> Iterator[Finding]:
    """Yield what keeps transformers.js from running a folder in Node."""
    yield from _findings(folder, "node")


def browser_findings(folder: Folder) -> Iterator[Finding]:
    """Yield what keeps transformers.js from running a folder in a browser, where its config.json says, or else wasm."""
    section = folder.document(CONFIG).get(KEY) or {}
    yield from _findings(folder, "gpu" if section.get("device") == WEBGPU.browser_device else "wasm")


def _findings(folder: Folder, device: Device) -> Iterator[Finding]:
    config = folder.document(CONFIG)
    if not config:
        yield error(f"There is no {CONFIG}, from which it chooses what to load.")
        return
    tower = tower_of(folder, config)
    yield from _type(folder, config) if tower is None else type_findings(folder, config, tower)
    yield from _tokenizer(folder)
    names: tuple[str, ...] = ("model",)
    if folder.kind == "encoder-decoder":
        names = ("encoder_model", "decoder_model_merged")
    if tower is not None and not is_known(config, tower):
        names = ()
    elif tower is not None:
        names = (tower.name, EMBED) if BLOCK_GRAPH in folder.graphs else (tower.name, EMBED, DECODER)
    for name in names:
        graph = yield from _find_graph(folder, config, name, device)
        if graph is None:
            continue
        yield from session_findings(folder, graph, NODE if device == "node" else WEB)
        yield from _data(folder, config, graph, device)
        if tower is not None:
            yield from _of_media(graph, name, tower, config)
        elif name == "decoder_model_merged":
            yield from merged_findings(graph)
        elif not graph.pasts:
            yield from _given(graph, GIVEN_TO_ENCODER)
            task = _encoder_task(config) if folder.kind == "encoder" else None
            yield from _lacking(graph, ENCODER_TASKS[task].reads if task else ())
        if graph.pasts:
            yield from _caches(graph, config)
        if name == "model" and graph.pasts:
            yield from _given(graph, GIVEN_TO_DECODER)
        if device == "wasm":
            yield from _kernels(graph)


def _of_media(graph: GraphFacts, name: str, tower: Tower, config: dict[str, Any]) -> Iterator[Finding]:
    """Yield what a graph of a model that sees or hears is not given, or does not return."""
    if name == tower.name:
        yield from _given(graph, tower.given)
        yield from _lacking(graph, (tower.output,))
        yield from states_findings(graph, config)
    elif name == EMBED:
        yield from _given(graph, ("input_ids",))
        yield from _lacking(graph, ("inputs_embeds",))
    else:
        yield from _given(graph, GIVEN_TO_READER)


def _type(folder: Folder, config: dict[str, Any]) -> Iterator[Finding]:
    """Yield an error if it has no class for the model_type and the kind of model."""
    model_type, architecture = config.get("model_type"), _architecture(config)
    what, known = "decoders", types.CAUSAL_LM
    if folder.kind == "encoder-decoder":
        what, known = "encoder-decoders", types.SEQ2SEQ_LM
    elif folder.kind == "encoder":
        if architecture.endswith("ForImageClassification"):
            yield unknown(f"Whether it classifies pictures with a {model_type} is not checked here.")
        task = _encoder_task(config)
        if task is None:
            return  # it computes states with an encoder of any type
        what, known = f"models {task}", ENCODER_TASKS[task].types
    if model_type not in known:
        more = " feature-extraction loads it as an encoder of no type." if folder.kind == "encoder" else ""
        yield error(f"It has no model_type {model_type!r} among its {what} (in {types.VERSION}).{more}")
    elif folder.kind == "decoder" and (
        model_type in types.OWN_GRAPHS or architecture.endswith("ForConditionalGeneration")
    ):
        yield error(f"It reads a {model_type} from several graphs, with the embedding in one of its own.")
    elif model_type in types.OTHER_CACHES and folder.kind == "decoder":
        yield unknown(f"It makes other kinds of caches for a {model_type}, which are not checked here.")


def _architecture(config: dict[str, Any]) -> str:
    return str((config.get("architectures") or [""])[0])


def _encoder_task(config: dict[str, Any]) -> str | None:
    """Return the task that the class in config.json has in its name; None for a model that only computes states."""
    return next((task for task in ENCODER_TASKS if _architecture(config).endswith(task)), None)


def _tokenizer(folder: Folder) -> Iterator[Finding]:
    if TOKENIZER in folder.files and TOKENIZER_CONFIG not in folder.files:
        yield error(f"There is no {TOKENIZER_CONFIG}, without which it opens no tokenizer.", "Copy the checkpoint's.")


def _setting(config: dict[str, Any], key: str, device: Device) -> Any:
    """Return a value of transformers.js_config in config.json; one for the device takes precedence."""
    own = config.get(KEY) or {}
    names = {"node": CPU.name, "wasm": CPU.browser_device, "gpu": WEBGPU.browser_device}
    return own.get("device_config", {}).get(names[device], {}).get(key, own.get(key))


def _find_graph(
    folder: Folder, config: dict[str, Any], name: str, device: Device
) -> Generator[Finding, None, GraphFacts | None]:
    """Return the graph that it opens for a part of the model; the dtype is a suffix of the file name."""
    chosen = _setting(config, "dtype", device)
    if isinstance(chosen, dict):
        chosen = chosen.get(name)
    if chosen not in (None, "auto", *SUFFIXES):
        yield warning(f"{CONFIG} has the dtype {chosen!r} for it, which it does not know and therefore ignores.")
    dtype = chosen if chosen in SUFFIXES else DEFAULT_DTYPE[device]
    file = f"onnx/{name}{SUFFIXES[dtype]}.onnx"
    if file not in folder.graphs:
        plain = f"onnx/{name}.onnx" in folder.graphs
        yield error(
            f"It looks for {file}, which is not there: the dtype in {CONFIG} is {chosen or 'not set'}.",
            f'Set {KEY}.dtype to "fp32" there, which is the name without a suffix.' if plain else "",
        )
    return folder.graphs.get(file)


def _data(folder: Folder, config: dict[str, Any], graph: GraphFacts, device: Device) -> Iterator[Finding]:
    """Yield what is wrong with files of weights.

    config.json has their number; their names follow from the graph's. In Node, onnxruntime also finds others.
    """
    chunks = _setting(config, "use_external_data_format", device)
    if isinstance(chunks, dict):
        chunks = chunks.get(graph.name, chunks.get(graph.name.removesuffix(".onnx"), 0))
    count = int(chunks or 0)
    # One more than there are files shows that one is lacking.
    listed = range(min(count, len(folder.files) + 1))
    names = [f"{graph.name}_data" + (f"_{index}" if index else "") for index in listed]
    place = PurePosixPath(graph.file).parent
    lacking = [name for name in names if (place / name).as_posix() not in folder.files]
    if lacking:
        yield error(
            f"{CONFIG} says that {graph.name} has {count} files of weights, and {', '.join(lacking)} is not there.",
            f"Set {KEY}.use_external_data_format to the number of files.",
        )
    if device == "node":
        return
    unlisted = [name for name in graph.data_files if name not in names]
    if unlisted:
        own = all(name.startswith(f"{graph.name}_data") for name in unlisted)
        yield error(
            f"A browser does not fetch {', '.join(unlisted)}, the weights of {graph.name}.",
            f'Set {KEY}.use_external_data_format to {{"{graph.name}": {len(graph.data_files)}}} in {CONFIG}.'
            if own
            else f"It fetches only files named {graph.name}_data, {graph.name}_data_1 …; graphs cannot share one.",
        )
    sizes = {name: folder.files.get((place / name).as_posix(), 0) for name in graph.data_files}
    large = [name for name, size in {graph.name: graph.bytes, **sizes}.items() if size > LARGEST_ARRAY]
    if large:
        yield error(f"{', '.join(large)} is larger than an array of a browser, 2 GB.", "Export with --deployment web.")
    if sum(sizes.values()) >= MAX_MEMORY:
        yield error(f"The weights of {graph.name} have 4 GB or more, the size of WebAssembly's memory.")


def _given(graph: GraphFacts, names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield inputs that it does not provide, and outputs that it reads and the graph lacks."""
    requires = [name for name in graph.inputs if name not in names and name not in graph.pasts]
    if requires:
        yield error(f"{graph.name} requires {', '.join(requires)}, which it does not provide.")
    odd = [
        tensor.name
        for name in names
        if (tensor := graph.inputs.get(name)) and name not in FLOATS and tensor.dtype != "int64"
    ]
    if odd:
        yield error(f"{graph.name} requires {', '.join(odd)} in another data type than int64.")
    if graph.pasts:
        presents = [tensor.present for tensor in graph.cache.tensors()]
        yield from _lacking(graph, ("logits", *presents))


def _lacking(graph: GraphFacts, names: Sequence[str]) -> Iterator[Finding]:
    """Yield an error if a graph does not return outputs that it reads."""
    lacks = [name for name in names if name not in graph.outputs]
    if lacks:
        yield error(f"{graph.name} does not return {', '.join(lacks)}.")


def _caches(graph: GraphFacts, config: dict[str, Any]) -> Iterator[Finding]:
    """Yield differences between the graph's cache and the empty one that it makes for the layers in config.json."""
    yield from _names(graph, config)
    if config.get("multi_query"):
        yield error(
            f"{CONFIG} has multi_query, so it makes caches with keys and values in one tensor, which edgeformer's "
            "graphs do not have."
        )
    # It replaces symbols by 0. If the length is a number, the cache has that length from the start.
    length = graph.past_shape[2] if graph.past_shape else None
    if graph.cache_form == "static" and not isinstance(length, int):
        yield error(
            f"It starts with an empty cache, and {graph.name} needs a preallocated one.",
            "Export with --cache dynamic, or --ops ort.",
        )
    elif graph.cache_form == "dynamic" and isinstance(length, int):
        yield error(f"It starts with a cache of {length} tokens, and {graph.name} treats all of them as text.")
    elif isinstance(length, int):
        yield warning(f"{graph.name} has room for {length} tokens: longer texts fail.")
    symbols = {
        str(dim)
        for name, tensor in graph.pasts.items()
        for place, dim in enumerate(tensor.dims)
        if not (place == 2 and is_per_token(name)) and not isinstance(dim, int) and dim != "batch_size"
    }
    if symbols:
        yield error(
            f"The caches of {graph.name} have the symbols {', '.join(sorted(symbols))}; it knows batch_size, and "
            "replaces other symbols by 0.",
            "Make all but the batch and the tokens numbers, and name the first dimension batch_size.",
        )
    odd = {tensor.dtype for tensor in graph.pasts.values()} - set(ARRAY_TYPES)
    if odd:
        yield error(f"The caches of {graph.name} are {', '.join(sorted(odd))}, for which JavaScript has no arrays.")


def _names(graph: GraphFacts, config: dict[str, Any]) -> Iterator[Finding]:
    """Yield an error if it makes no caches for states of the graph, by the layers in config.json."""
    if config.get("model_type") in types.OTHER_CACHES or any(".decoder." in name for name in graph.pasts):
        return
    try:
        made = cache_names(config)
    except ValueError as problem:
        yield error(str(problem))
        return
    lacking = [name for name in graph.pasts if name not in made]
    if lacking:
        key = types.LAYERS.get(str(config.get("model_type")), "num_hidden_layers")
        yield error(
            f"It makes no caches {', '.join(lacking)} for the layers in {CONFIG}, where {key} is {config.get(key)} and "
            f"layer_types is {config.get('layer_types')}."
        )
    if not graph.past_shape:
        yield error(f"It counts tokens by a layer's keys, and no layer of {graph.name} has any.")


def _kernels(graph: GraphFacts) -> Iterator[Finding]:
    """Yield ops without a kernel.

    transformers.js uses the build of onnxruntime-web that has WebGPU, too, which has fewer kernels for WebAssembly.
    """
    if BLOCK_GATHER.key in graph.ops:
        yield error(
            f"{graph.name} has a quantized embedding (GatherBlockQuantized), for which its WebAssembly has no kernel.",
            "Export with --head-precision fp32, or for GPUs: --deployment web --provider webgpu.",
        )
    if "bfloat16" in graph.constants:
        yield error(
            f"{graph.name} has bfloat16 weights, for which its WebAssembly has no kernel.",
            "Export with another --precision.",
        )
