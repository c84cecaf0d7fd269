"""The forms in which a bundle has the graphs of its model: one table, which all that write or read graphs go by.

`edgeformer.export.graph_forms` has the function that makes each form, and `edgeformer.export.parity.trials.graph_forms`
the trials of forms that are not tried together with the model's own graphs.
"""

from dataclasses import dataclass
from typing import Any

from edgeformer.documents.schema import check, fields_from_json
from edgeformer.errors import ConfigError, shown
from edgeformer.manifest.parts import StoredWeight


@dataclass(frozen=True, kw_only=True)
class BundledGraph:
    """A graph of a bundle. file: its path in the bundle."""

    file: str


@dataclass(frozen=True, kw_only=True)
class WindowedGraph(BundledGraph):
    """The windowed graph. windows: per layer, the length of its cache; None for the whole context."""

    windows: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class AdapterGraph(BundledGraph):
    """The graph that takes a LoRA adapter as inputs, over the weights of the decode graph.

        y = W x + B (A x)      inputs SITE.lora_A [adapter_rows, in, rank] and SITE.lora_B [adapter_rows, rank, out]

    The first axis is 1, for an adapter of all rows, or the batch. The ranks of the sites are free.

    Attributes:
        sites: the adapted matrices by the name of their site, each with the parameters that it was joined from; B has
            the factor of its first outputs already.
    """

    sites: dict[str, StoredWeight]

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the parameters that an adapter of this graph may change."""
        return frozenset(name for site in self.sites.values() for name in site.parameters)


@dataclass(frozen=True, kw_only=True)
class AlignmentHead:
    """A head of a speech model's cross-attention that reads the recording where a token is spoken."""

    layer: int
    head: int


@dataclass(frozen=True, kw_only=True)
class AlignmentGraph(BundledGraph):
    """The alignment graph of a speech model, over the weights of the decoder: the times of words come from it.

    It has the decoder's inputs and outputs, but for the logits: instead of these it returns the weights of
    cross-attention, float32 [B, heads, S, source length].

    Attributes:
        heads: whose weights it returns, in order.
        median_filter_width: positions of the recording whose median smooths a weight; an odd number.
    """

    heads: tuple[AlignmentHead, ...]
    median_filter_width: int

    def __post_init__(self) -> None:
        check(len(self.heads) > 0, self, "heads", "at least one")
        odd = self.median_filter_width > 0 and self.median_filter_width % 2 == 1
        check(odd, self, "median_filter_width", "a positive odd number")


@dataclass(frozen=True, kw_only=True)
class GraphForm:
    """One form of a graph.

    Attributes:
        file: its path in a bundle; in a folder for phones the suffix is .ort.
        what: what the graph is, in a few words.
        written: when a bundle has it.
        verified: how a verification judges it.
        read_by: the clients that run it.
        entry: type of its entry in the manifest.
        steps: True where the graph runs the model token by token.
        replaces: the form whose graph those that read this one do not open where it is there.
        weights: the forms whose file of weights it has, where graphs have files of their own: that of the first which
            is there, or its own.
        ort: whether a bundle in ORT format, where each graph holds its weights, has it.
        beside: whether it is tried together with the graphs that run the model, as a further session of their trial.
        prepacked: whether `edgeformer optimize` prepacks its weights.
        twin: whether a graph of this form for CUDA has a float32 twin, which is verified where there is no GPU.
    """

    file: str
    what: str
    written: str
    verified: str
    read_by: tuple[str, ...]
    entry: type[BundledGraph] = BundledGraph
    steps: bool = False
    replaces: str | None = None
    weights: tuple[str, ...] = ()
    ort: bool = False
    beside: bool = False
    prepacked: bool = False
    twin: bool = False


GRAPH = "onnx/model.onnx"
ENCODER_GRAPH = "onnx/encoder_model.onnx"
DECODER_GRAPH = "onnx/decoder_model.onnx"
MERGED_GRAPH = "onnx/decoder_model_merged.onnx"
BLOCK_GRAPH = "onnx/decoder_model_blocks.onnx"
TEXT_GRAPH = "onnx/text_model.onnx"
VISION_GRAPH = "onnx/vision_model.onnx"

EDGEFORMER, GENAI, TRANSFORMERS_JS, OPTIMUM = "edgeformer", "onnxruntime-genai", "transformers.js", "Optimum"

FORMS: dict[str, GraphForm] = {
    "encoder": GraphForm(
        file=ENCODER_GRAPH, what="encoder of an encoder-decoder", written="encoder-decoders",
        verified="trial of the model", read_by=(EDGEFORMER, TRANSFORMERS_JS, OPTIMUM),
        steps=True, ort=True, prepacked=True, twin=True,
    ),
    "text": GraphForm(
        file=TEXT_GRAPH, what="texts' half of a dual encoder", written="dual encoders",
        verified="trial of the model", read_by=(EDGEFORMER, TRANSFORMERS_JS),
        steps=True, ort=True, prepacked=True, twin=True,
    ),
    "model": GraphForm(
        file=GRAPH, what="decode graph of a decoder, or an encoder; of an encoder-decoder, `onnx/decoder_model.onnx`, "
        "and of a dual encoder its pictures' half, `onnx/vision_model.onnx`",
        written="all", verified="trial of the model", read_by=(EDGEFORMER, GENAI, TRANSFORMERS_JS, OPTIMUM),
        steps=True, weights=("merged", "embedding_decoder"), ort=True, prepacked=True, twin=True,
    ),
    "vision_encoder": GraphForm(
        file="onnx/vision_encoder.onnx", what="tower of pictures and projector: pixel values → `image_features`",
        written="models that read pictures and text", verified="trial of its own",
        read_by=(EDGEFORMER, TRANSFORMERS_JS),
    ),
    "audio_encoder": GraphForm(
        file="onnx/audio_encoder.onnx", what="tower of sound and projector: spectrograms → `audio_features`",
        written="models that read sound and text", verified="trial of its own",
        read_by=(EDGEFORMER, TRANSFORMERS_JS),
    ),
    "embed_tokens": GraphForm(
        file="onnx/embed_tokens.onnx", what="embeddings of tokens, which those of pictures or sound are put between",
        written="models that read pictures or sound, and text", verified="trial of its own",
        read_by=(EDGEFORMER, TRANSFORMERS_JS),
    ),
    "embedding": GraphForm(
        file="onnx/embedding.onnx", what="`embed_tokens` that puts states of pictures in the places of placeholders "
        "itself, same weights",
        written="Qwen2.5-VL, Qwen3-VL, Qwen3.5; where onnxruntime-genai is a client",
        verified="trial of its own, against `embed_tokens`", read_by=(GENAI,),
    ),
    "embedding_decoder": GraphForm(
        file=MERGED_GRAPH, what="decode graph that reads embeddings in the place of tokens, same weights; where these "
        "attend both ways (Gemma 3, the larger Gemma 4, PaliGemma) of one block, `onnx/decoder_model_blocks.onnx`, for "
        "edgeformer alone",
        written="models that read pictures or sound, and text", verified="trial of its own, behind the other two",
        read_by=(EDGEFORMER, TRANSFORMERS_JS),
    ),
    "embedding_encoder": GraphForm(
        file="onnx/model_embeddings.onnx", what="encoder that reads embeddings in the place of tokens, same weights",
        written="encoders that read pictures and text", verified="trial of its own, behind `vision_encoder` and "
        "`embed_tokens`",
        read_by=(EDGEFORMER,), weights=("model",),
    ),
    "mtp": GraphForm(
        file="onnx/model_mtp.onnx", what="layer of multi-token prediction, which drafts tokens from the states that "
        "the decode graph returns then, same weights",
        written="decoders with `--mtp`", verified="trial of its own, with the decode graph", read_by=(EDGEFORMER,),
        weights=("model",),
    ),
    "windowed": GraphForm(
        file="onnx/model_windowed.onnx", what="decode graph over caches as long as the windows, same weights",
        written="decoders with sliding windows, `ort`, without adapters and pictures; server, desktop",
        verified="trial of the model, against the decode graph", read_by=(EDGEFORMER,),
        entry=WindowedGraph, steps=True, replaces="model", prepacked=True,
    ),
    "merged": GraphForm(
        file=MERGED_GRAPH, what="decoder that computes keys and values of the source itself, same weights",
        written="encoder-decoders, `ort` on the CPU; where transformers.js is a client",
        verified="trial of the model, beside the decoder", read_by=(TRANSFORMERS_JS, OPTIMUM),
        replaces="model", beside=True,
    ),
    "joined": GraphForm(
        file=GRAPH, what="both halves of a dual encoder and their similarity, same weights",
        written="dual encoders; where transformers.js is a client",
        verified="trial of the model, beside its halves", read_by=(TRANSFORMERS_JS, OPTIMUM), beside=True, twin=True,
    ),
    "adapters": GraphForm(
        file="onnx/model_adapters.onnx", what="decode graph that takes an adapter as inputs, same weights",
        written="decoders with `--adapter`", verified="a trial with each adapter", read_by=(EDGEFORMER,),
        entry=AdapterGraph, twin=True,
    ),
    "alignment": GraphForm(
        file="onnx/decoder_model_alignment.onnx", what="decoder that returns weights of cross-attention, same weights",
        written="speech models with `alignment_heads`, but for mobile",
        verified="trial of the model, beside the decoder", read_by=(EDGEFORMER,),
        entry=AlignmentGraph, weights=("merged", "model"), beside=True, twin=True,
    ),
}  # fmt: skip
"""The forms of graphs that a manifest lists, by name, in the order in which they are listed, run and tried."""

COPIES: dict[str, GraphForm] = {
    "ort": GraphForm(
        file="onnx/*.ort", what="graph in ORT format, with its weights inside, in place of the ONNX file",
        written="mobile: encoder and model", verified="the trial of its form", read_by=(EDGEFORMER, GENAI),
    ),
    "prepacked": GraphForm(
        file="prepacked/…", what="graph whose weights are laid out for this machine's kernels",
        written="`edgeformer optimize`", verified="its tokens equal those of the bundle", read_by=(EDGEFORMER,),
    ),
    "panels": GraphForm(
        file="prepacked/…", what="weights in the order in which edgeformer-kernels read them",
        written="`edgeformer optimize`, with the kernels", verified="its tokens equal those of the bundle",
        read_by=(EDGEFORMER,),
    ),
    "twin": GraphForm(
        file="", what="float32 graph with the nodes of a graph for CUDA", written="during a verification without a GPU",
        verified="all trials", read_by=(),
    ),
    "fp8 twin": GraphForm(
        file="", what="twin whose attention over an fp8 cache is other nodes", written="the same, with an fp8 cache",
        verified="all trials", read_by=(),
    ),
    "float products": GraphForm(
        file="", what="graph whose integer products are computed in float64",
        written="during a verification of per-token activations", verified="trial of the model", read_by=(),
    ),
}  # fmt: skip
"""Further forms, which are made of graphs of `FORMS` and stand in no manifest."""


class BundledGraphs(dict[str, BundledGraph]):
    """The graphs of a bundle by the names of their forms."""

    def read_by(self, client: str) -> dict[str, BundledGraph]:
        """Return the graphs that a client opens: those that it reads, without those that another of them replaces."""
        read = {name: graph for name, graph in self.items() if client in FORMS[name].read_by}
        return {name: graph for name, graph in read.items() if name not in {FORMS[each].replaces for each in read}}

    @classmethod
    def from_json(cls, data: Any, path: str) -> "BundledGraphs":
        """Return the graphs that a manifest lists. Raises ConfigError for a form that does not exist."""
        if not isinstance(data, dict) or not data.keys() <= FORMS.keys():
            raise ConfigError(f"{path} is {shown(data)}; it must be an object with any of {', '.join(FORMS)}.")
        return cls(
            (name, fields_from_json(form.entry, data[name], f"{path}.{name}"))
            for name, form in FORMS.items()
            if name in data
        )
