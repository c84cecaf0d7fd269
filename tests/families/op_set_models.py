"""Small random models, captured once and lowered to every op set, and what our own module computes in float64."""

from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import onnx_ir as ir
import torch
import transformers
from encoder_rows import ENCODERS
from op_set_client import (
    LENGTHS,
    TOTAL,
    FiniteStatic,
    Growing,
    KernelGrowing,
    KernelStatic,
    Static,
    asked,
    encode,
    in_onnxruntime,
    read,
)
from rows import FAMILIES
from seq2seq_rows import FAMILIES as PAIRS

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import (
    ClassificationHead,
    EncoderConfig,
    MaskedLMHead,
    NormConfig,
    PoolingHead,
    Seq2SeqConfig,
)
from edgeformer.export.capture.trace import capture
from edgeformer.export.graph.outlining import trim_functions
from edgeformer.export.lower import LoweringOptions, lower
from edgeformer.export.reference.reference import CastWeights, Reference
from edgeformer.families import read_model_config
from edgeformer.models.model_spec import model_spec_of

TARGETS = {
    "ort": LoweringOptions(),
    "standard": LoweringOptions(ops="standard", cache_form="dynamic"),
    "standard static": LoweringOptions(ops="standard", cache_form="static"),
    "portable": LoweringOptions(ops="portable", cache_form="dynamic"),
    "portable static": LoweringOptions(ops="portable", cache_form="static"),
    "portable functions": LoweringOptions(ops="portable", cache_form="dynamic", functions=True),
}

WAYS = {
    ("ort", "any"): {"": (KernelStatic, True), "growing ": (KernelGrowing, False)},
    ("standard", "dynamic"): {"": (Growing, False)},
    ("standard", "static"): {"": (FiniteStatic, True)},
    ("portable", "dynamic"): {"": (Growing, False)},
    ("portable", "static"): {"": (Static, True)},
}
"""How caches may be kept, by op set and cache form: by whom, and whether past and present are one buffer."""

HEADS = cycle(
    [
        MaskedLMHead(activation="gelu", norm=NormConfig(kind="layer_norm", eps=1e-5, bias=True)),
        ClassificationHead(labels=("yes", "no"), pooling="first", dense="tanh"),
        PoolingHead(pooling="mean", normalize=True),
        ClassificationHead(labels=("yes", "no"), pooling=None),
    ]
)
ENCODER_HEADS = dict(zip(ENCODERS, HEADS, strict=False))


def family_config(family):
    """The first model of a family's tests, as they export it: one trace serves all. Encoders take turns in heads."""
    row = (FAMILIES | PAIRS | ENCODERS)[family]
    name, options = next(iter(row.models.items()))
    options = row.sizes | options
    if family != "transformer":
        options = {name: value for name, value in options.items() if name not in ("head", "pooling")}
        options = transformers.CONFIG_MAPPING[family](**options).to_diff_dict()
    context = row.exported.get(name, {}).get("context_length") if family in FAMILIES else None
    config = read_model_config(options, context)[1]
    return replace(config, head=ENCODER_HEADS[family]) if family in ENCODERS else config


@dataclass
class Captured:
    """A model whose graphs are canonical still. texts: what it is fed; expected: what our module computes of that."""

    config: object
    graphs: list[ir.Model]
    dtype: torch.dtype
    texts: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]

    def lowered(self, target):
        """Its graphs in an op set, as they are written, made of copies, which read their weights then."""
        graphs = [graph.clone() for graph in self.graphs]
        for graph in graphs:
            lower(graph, TARGETS[target])
            trim_functions(graph)
        return [ir.serde.serialize_model(graph) for graph in graphs]


def captured(config, dtype=torch.float32, seed=0):
    """Capture a model with random weights."""
    model_spec, weights = model_spec_of(config), CastWeights(RandomWeights(config, seed), dtype)
    graphs = [capture(spec, model_spec, weights, dtype) for spec in model_spec.graphs]
    texts = make_texts(config)
    return Captured(config, graphs, dtype, texts, reference(config, weights, texts))


def make_texts(config):
    """Inputs of a model: of a decoder `tokens` [B, N], of an encoder what its graph takes; padding is random too."""
    random = np.random.default_rng(0)
    texts, rows = {}, len(LENGTHS)
    if not isinstance(config, EncoderConfig):
        texts["tokens"] = random.integers(4, config.vocab_size, (rows, TOTAL))
    encoder = config.encoder if isinstance(config, Seq2SeqConfig) else config
    if isinstance(encoder, EncoderConfig) and encoder.audio is not None:
        shape = rows, encoder.audio.mel_bins, 2 * encoder.context_length
        texts["input_features"] = random.standard_normal(shape).astype(np.float32)
    elif isinstance(encoder, EncoderConfig):
        shape = rows, max(LENGTHS)
        texts["input_ids"] = random.integers(4, encoder.vocab_size, shape)
        texts["attention_mask"] = (np.arange(shape[1]) < np.array(LENGTHS)[:, None]).astype(np.int64)
        if encoder.token_types > 1:
            texts["token_type_ids"] = random.integers(0, encoder.token_types, shape)
    return texts


def reference(config, weights, texts):
    """What our module computes in float64: no cache, and decoders see no padding."""
    module = Reference(model_spec_of(config), weights)
    inputs = {name: torch.from_numpy(array) for name, array in texts.items()}
    tokens = inputs.pop("tokens", None)
    given = [each.double() if each.is_floating_point() else each for each in inputs.values()]
    if isinstance(config, EncoderConfig):
        outputs = module.forward(*given)
        return {spec: each.numpy() for spec, each in zip(model_spec_of(config).graphs[0].outputs, outputs, strict=True)}
    if not isinstance(config, Seq2SeqConfig):
        return asked(module.run(tokens)[0].numpy())
    with module.loaded():
        states, sources = module.module.encode(*given)
        mask = inputs.get("attention_mask", torch.ones(states.shape[:2], dtype=torch.int64))
        caches = module.empty_caches(len(tokens))
        logits, _ = module.module.decode(tokens, torch.ones_like(tokens), mask, caches, sources)
    return {"last_hidden_state": states.numpy(), **asked(logits.numpy())}


def computed(model, target, runtime=in_onnxruntime, graphs=None):
    """Return the outputs of the graphs of an op set, in the form of `expected`.

    runtime: from a serialized model to a function. graphs: those of the op set, where somebody has them.
    """
    form = TARGETS[target].cache_form
    graphs = [graph.SerializeToString() for graph in graphs or model.lowered(target)]
    texts, dtype = dict(model.texts), np.float16 if model.dtype == torch.float16 else np.float32
    tokens, outputs = texts.pop("tokens", None), {}
    options = {"dtype": dtype}
    if texts:
        texts = {name: array.astype(dtype) if array.dtype == np.float32 else array for name, array in texts.items()}
        outputs, alone = encode(runtime(graphs[0]), texts)
        if tokens is None:
            return outputs | {f"{name} alone": array for name, array in alone.items()}
        length = outputs["last_hidden_state"].shape[1]
        mask = texts.get("attention_mask", np.ones((len(tokens), length), np.int64))
        keys = {name.replace("present", "past_key_values"): array for name, array in outputs.items()}
        outputs = {"last_hidden_state": keys.pop("last_hidden_state")}
        options |= {"mask": "decoder_attention_mask", "given": {"encoder_attention_mask": mask, **keys}}
    caches = caches_of(model.config)
    for way, (decoder, in_place) in WAYS[target.split()[0], form].items():
        run = runtime(graphs[-1], in_place) if in_place else runtime(graphs[-1])
        outputs |= {way + name: logits for name, logits in read(decoder(run, caches, **options), tokens).items()}
    return outputs


def caches_of(config):
    """Dimensions behind the rows by the name of every past that a decoder is fed; None is the number of tokens.

    States of fixed size have none, and some of them are float32 in graphs of half precision, too.
    """
    alone = not isinstance(config, Seq2SeqConfig)
    geometry = config.cache_geometry if alone else config.decoder.cache_geometry
    tensors = geometry.tensors("" if alone else "decoder.")
    return {tensor.past: (tensor.state.dims, tensor.single) for tensor in tensors}


def errors(model, outputs):
    """max |Δ| / max |expected| of every part, where texts are: what padding computes is never read."""
    return {part: relative_error(*comparable(model, part, actual)) for part, actual in outputs.items()}


def comparable(model, part, actual):
    """What a graph computed and what was expected of it, both without padding."""
    expected = model.expected[part.removeprefix("growing ").removesuffix(" alone")]
    mask = model.texts.get("attention_mask")
    per_token = mask is not None and expected.shape[:2] == mask.shape
    if part.endswith(" alone"):
        return actual, expected[1:2, : LENGTHS[1]] if per_token else expected[1:2]
    return (actual[mask == 1], expected[mask == 1]) if per_token else (actual, expected)


def relative_error(actual, expected):
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()
