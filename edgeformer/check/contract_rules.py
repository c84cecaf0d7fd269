"""Rules of edgeformer's tensor contract (`edgeformer.contract.tensors`): files, tensors, dimensions, positions."""

from collections.abc import Iterator, Sequence

from edgeformer.check.finding import Finding, error, warning
from edgeformer.check.folder import TOKENIZER, Folder
from edgeformer.check.graph_facts import GraphFacts
from edgeformer.check.session_rules import session_findings
from edgeformer.check.tensor_facts import Dim, TensorFacts
from edgeformer.contract import tensors as contract
from edgeformer.contract.tensors import CacheGeometry, ConvState, KeyValueState, RecurrentState, State, TensorSpec
from edgeformer.errors import BundleError
from edgeformer.manifest.graph_forms import DECODER_GRAPH, ENCODER_GRAPH, MERGED_GRAPH, TEXT_GRAPH
from edgeformer.manifest.manifest import FILE_NAME

DATA_SUFFIX = ".onnx_data"

SIZES: dict[type[State], tuple[str, ...]] = {
    KeyValueState: ("the number of heads", "the number of tokens", "head_dim"),
    ConvState: ("the number of channels", "the width"),
    RecurrentState: ("the number of heads", "the size of a key", "the size of a value"),
}
"""Names of the dimensions of each kind of state, without the batch; an error about a dimension quotes them."""


def contract_findings(folder: Folder) -> Iterator[Finding]:
    """Yield what is wrong with the folder itself, for all clients."""
    for name, why in folder.unreadable.items():
        yield error(f"{name} cannot be read: {why}.", "Copy or export it again.")
    for graph in folder.graphs.values():
        yield from session_findings(folder, graph)
        yield from _data_names(graph)
    yield from _main_tensors(folder)
    yield from _manifest(folder)
    for name in folder.ort_graphs:
        yield warning(f"{name} is in ORT format and was not checked. It is for the onnxruntime version that made it.")
    reads_text = folder.main is None or not set(contract.MEDIA_INPUTS) & set(folder.main.inputs)
    if TOKENIZER not in folder.files and reads_text:
        yield warning(f"There is no {TOKENIZER}: clients take token ids only, and no texts.")


def _data_names(graph: GraphFacts) -> Iterator[Finding]:
    """Yield files of weights without the usual suffix; a number may follow it."""
    wrong = [name for name in graph.data_files if DATA_SUFFIX not in name]
    if wrong:
        yield warning(
            f"{graph.file} has its weights in {', '.join(wrong)}; the hub and browsers expect names with {DATA_SUFFIX}."
        )


def _manifest(folder: Folder) -> Iterator[Finding]:
    """Yield differences between edgeformer.json and the graph; other exporters' folders have no manifest."""
    if FILE_NAME not in folder.files:
        return
    try:
        manifest = folder.manifest()
    except BundleError as problem:
        yield error(str(problem))
        return
    graph = folder.graphs.get(manifest.graph)
    if graph is None:
        return
    if graph.positions is not None and manifest.context_length > graph.positions:
        yield error(
            f"{FILE_NAME} declares a context of {manifest.context_length:,} tokens, and the tables of positions in "
            f"{graph.file} have {graph.positions:,} rows.",
            f"Declare no more than {graph.positions:,}.",
        )
    if graph.cache_form is not None and graph.cache_form != manifest.plan.cache_form:
        yield error(
            f"The cache form is {manifest.plan.cache_form!r} in {FILE_NAME}, and {graph.cache_form!r} in {graph.file}."
        )
    logits = graph.outputs.get("logits")
    if graph.pasts and logits and isinstance(logits.dims[-1], int) and logits.dims[-1] != manifest.vocab_size:
        yield error(
            f"{FILE_NAME} has a vocabulary of {manifest.vocab_size:,}, and {graph.file} returns logits of "
            f"{logits.dims[-1]:,}."
        )


def _main_tensors(folder: Folder) -> Iterator[Finding]:
    """Yield what is wrong with the tensors of the graphs that loops over onnxruntime bind."""
    if folder.kind == "encoder-decoder":
        encoder, decoder = folder.graph(ENCODER_GRAPH), folder.graph(DECODER_GRAPH)
        if encoder is not None:
            yield from _encoder(encoder)
        if decoder is not None:
            yield from _decoder(decoder)
        elif folder.graph(MERGED_GRAPH) is None:
            yield error("There is an encoder_model.onnx and no decoder_model.onnx.", "Export the model again.")
    elif folder.main is not None:
        yield from tensor_findings(folder.main)


def tensor_findings(graph: GraphFacts) -> Iterator[Finding]:
    """Yield how the tensors of a decoder's or an encoder's graph differ from the contract."""
    yield from (_decoder if graph.pasts else _encoder)(graph)


def _decoder(graph: GraphFacts) -> Iterator[Finding]:
    geometry = graph.cache
    has_encoder = "encoder_attention_mask" in graph.inputs or any(".encoder." in name for name in graph.pasts)
    source = CacheGeometry.of_attention(geometry.num_layers, 0, 0)
    specs = contract.seq2seq_decoder_inputs(geometry, source) if has_encoder else contract.decoder_inputs(geometry)
    presents = contract.present_names(geometry, "decoder." if has_encoder else "")
    yield from _inputs(graph, specs)
    yield from _outputs(graph, ["logits", *presents])
    logits = graph.outputs.get("logits")
    if logits is not None and logits.dtype != "float":
        yield warning(f"{graph.file} returns logits as {logits.dtype}, not float32: an app has to read that type.")
    yield from _cache_dims(graph)


def _encoder(graph: GraphFacts) -> Iterator[Finding]:
    media = next((name for name in contract.MEDIA_INPUTS if name in graph.inputs), None)
    if media is not None:
        both = "logits_per_image" in graph.outputs  # both halves of a dual encoder
        patches = [contract.PATCH_MASK, contract.SHAPES] if contract.SHAPES in graph.inputs else []
        expected = [*(["input_ids"] if both else []), media, *patches]
    elif graph.file == TEXT_GRAPH:  # of a dual encoder, all of whose tokens count
        expected = ["input_ids"]
    else:
        expected = [spec.name for spec in contract.text_inputs("", "token_type_ids" in graph.inputs)]
    yield from _names(graph, "input", expected, graph.inputs)
    for tensor in graph.inputs.values():
        if tensor.name in expected and tensor.name != media:
            yield from _int64(graph, tensor)
    known = contract.ENCODER_OUTPUTS
    if not any(name in graph.outputs for name in known):
        yield error(f"{graph.file} returns {', '.join(graph.outputs)}, and none of {', '.join(known)}.")


def _inputs(graph: GraphFacts, specs: Sequence[TensorSpec]) -> Iterator[Finding]:
    yield from _names(graph, "input", [spec.name for spec in specs], graph.inputs)
    for spec in specs:
        tensor = graph.inputs.get(spec.name)
        if tensor is None:
            continue
        if spec.integer:
            yield from _int64(graph, tensor)
        if len(tensor.dims) != len(spec.dims):
            yield error(f"{graph.file}: {tensor.name} has {len(tensor.dims)} dimensions instead of {len(spec.dims)}.")
        elif spec.integer and tensor.dims != spec.dims:
            yield _other_dims(graph, tensor, spec.dims)


def _outputs(graph: GraphFacts, names: Sequence[str]) -> Iterator[Finding]:
    yield from _names(graph, "output", names, graph.outputs)


def _names(graph: GraphFacts, what: str, expected: Sequence[str], found: dict[str, TensorFacts]) -> Iterator[Finding]:
    missing = [name for name in expected if name not in found]
    more = [name for name in found if name not in expected]
    if missing:
        yield error(f"{graph.file} has no {what} {', '.join(missing)}.", "Export it again, or rename it back.")
    if more and what == "input":
        yield error(
            f"{graph.file} requires {', '.join(more)}, which is not in the contract.",
            "A client has to provide it, and edgeformer's clients do not.",
        )
    if not missing and not more and list(expected) != list(found):
        yield warning(f"{graph.file} has its {what}s in another order; bind them by name.")


def _int64(graph: GraphFacts, tensor: TensorFacts) -> Iterator[Finding]:
    if tensor.dtype != "int64":
        yield error(f"{graph.file}: {tensor.name} is {tensor.dtype}, and token ids and masks are int64 everywhere.")


def _cache_dims(graph: GraphFacts) -> Iterator[Finding]:
    """Yield what is wrong with dimensions of states: all but the batch and the number of tokens must be numbers."""
    part = "decoder." if any(".decoder." in name for name in graph.pasts) else ""
    found: dict[str, Finding] = {}
    types: dict[str, set[str]] = {}
    for kept in graph.cache.tensors(part):
        past, present = graph.inputs.get(kept.past), graph.outputs.get(kept.present)
        for tensor in filter(None, (past, present)):
            types.setdefault(kept.state.kind, set()).add(tensor.dtype)
            if len(tensor.dims) == 1 + len(kept.state.dims):
                for place, problem in _wrong_sizes(graph, tensor, kept.state):
                    found.setdefault(place, problem)
        if past and present and not kept.per_token and past.dims[1:] != present.dims[1:]:
            yield error(
                f"{graph.file}: {past.name} is {_shown(past.dims)} and {present.name} is {_shown(present.dims)}; a "
                "state of fixed size is fed back as it is."
            )
    yield from found.values()
    for names in types.values():
        if len(names) > 1:
            yield error(f"{graph.file} has caches of several data types: {', '.join(sorted(names))}.")


def _wrong_sizes(graph: GraphFacts, tensor: TensorFacts, state: State) -> Iterator[tuple[str, Finding]]:
    """Yield wrong dimensions of a past or a present, each with a name of what it is."""
    if tensor.dims[0] != "batch_size":
        problem = f"{graph.file}: the first dimension of {tensor.name} is {tensor.dims[0]!r}, not 'batch_size'."
        yield "batch", warning(problem)
    for what, size, dim in zip(SIZES[type(state)], state.dims, tensor.dims[1:], strict=True):
        if size is None and isinstance(dim, int):
            yield (
                what,
                error(
                    f"{graph.file}: {tensor.name} has a fixed length of {dim} tokens; it must be a symbol, so that "
                    "apps choose it."
                ),
            )
        elif size is not None and not isinstance(dim, int):
            yield (
                f"{state.kind}, {what}",
                error(
                    f"{graph.file}: {what} of {tensor.name} is the symbol {dim or 'nothing'!r} and must be a number: "
                    "clients use it to make an empty cache.",
                    "Set it in the graph's inputs and outputs.",
                ),
            )


def _shown(dims: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _other_dims(graph: GraphFacts, tensor: TensorFacts, expected: Sequence[Dim]) -> Finding:
    return warning(f"{graph.file}: {tensor.name} is {_shown(tensor.dims)}; the contract has {_shown(expected)}.")
