"""Open a graph that another exporter made, and check that it has the tensors of a decoder bundle.

Such a graph describes only its tensors; the model that it is verified against says what it should compute.
"""

import json
import os
from pathlib import Path

from edgeformer.checkpoints.source import ModelSource
from edgeformer.config import DecoderConfig
from edgeformer.contract.tensors import input_names, output_names
from edgeformer.errors import BundleError
from edgeformer.manifest.graph_forms import BundledGraph, BundledGraphs
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Arithmetic, Provenance
from edgeformer.manifest.plan import ExportPlan
from edgeformer.runtime.sessions.session import open_session

PLACES = ("onnx/model.onnx", "model.onnx", "onnx/decoder_model_merged.onnx")
"""Files that exporters write the graph of a decoder to."""
PRECISIONS: dict[str, Arithmetic] = {"tensor(float)": "fp32", "tensor(float16)": "fp16"}


def open_foreign(path: Path, source: ModelSource) -> tuple[Path, Manifest]:
    """Return the folder of a graph, and a manifest that describes it as the model of `source`.

    path: an ONNX file or a folder with one. Raises BundleError where there is none, or where its inputs and outputs are
    not those of a decoder of this model.
    """
    folder, graph = (path.parent, path.name) if os.path.isfile(path) else (path, _find_graph(path))
    config = source.config
    if not isinstance(config, DecoderConfig):
        raise BundleError("only decoders of other exporters can be verified, and this is another kind of model.")
    session = open_session(folder / graph, prepack=False)
    geometry = config.cache_geometry
    tensors = {value.name: value for value in (*session.get_inputs(), *session.get_outputs())}
    wanted = {*input_names(geometry), *output_names(geometry)}
    if wanted != tensors.keys():
        differing = [f"lacks {name}" for name in sorted(wanted - tensors.keys())]
        differing += [f"has {name}" for name in sorted(tensors.keys() - wanted)]
        raise BundleError(
            f"{folder / graph} has not the inputs and outputs of a {geometry.num_layers}-layer decoder: it "
            f"{', '.join(differing[:6])}{' …' if len(differing) > 6 else ''}. Only graphs with input_ids, "
            "attention_mask, past_key_values.*, logits and present.* can be verified."
        )
    for tensor in geometry.tensors():
        past = tensors[tensor.past]
        # Other exporters may leave symbolic what is a number here.
        sizes = zip(past.shape[1:], tensor.state.dims, strict=True)
        differs = any(isinstance(size, int) and wished is not None and size != wished for size, wished in sizes)
        if differs or past.type not in PRECISIONS:
            raise BundleError(
                f"{folder / graph} has {tensor.past} of {past.type} {past.shape}; the model keeps "
                f"{tensor.shape(1, 1)[1:]} a token there, and only float and float16 can be verified."
            )
    return folder, Manifest(
        task="causal-lm",
        name=folder.name,
        provenance=Provenance(source="somebody else's export"),
        plan=ExportPlan(precision=PRECISIONS[past.type], arithmetic=PRECISIONS[past.type]),
        graphs=BundledGraphs(model=BundledGraph(file=graph)),
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        cache=geometry,
        model=config,
        tokens=source.special_tokens(),
        files={},
        weights={},
        versions={},
        parity=None,
    )


def _find_graph(folder: Path) -> str:
    config = folder / "genai_config.json"
    named = [json.loads(config.read_text(encoding="utf-8"))["model"]["decoder"]["filename"]] if config.is_file() else []
    for name in (*named, *PLACES):
        if (folder / name).is_file():
            return name
    raise BundleError(f"{folder} has no ONNX graph; looked for {', '.join((*named, *PLACES))}. Give the file itself.")
