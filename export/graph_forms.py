"""How each form of a graph is made: the writers of `edgeformer.manifest.graph_forms.FORMS`.

encoder, text, model, merged, joined, alignment, vision_encoder, audio_encoder,
embed_tokens, embedding, embedding_decoder,
embedding_encoder, mtp                              are lowered first, and written together, over weights in common
windowed, adapters                                  are written beside them, from what is there
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from edgeformer.config import DualEncoderConfig, Seq2SeqConfig
from edgeformer.export.adapter_graph import write_adapter_graph
from edgeformer.export.bundle.writer import weight_files
from edgeformer.export.graph_folder import GraphFolder
from edgeformer.export.lower import GraphJob
from edgeformer.export.lower.alignment import alignment_graph
from edgeformer.export.lower.merged_decoder import merged_decoder
from edgeformer.export.lower.placed_states import with_states
from edgeformer.export.lower.windowed_graph import write_windowed_graph
from edgeformer.manifest.graph_forms import (
    DECODER_GRAPH,
    ENCODER_GRAPH,
    FORMS,
    GRAPH,
    MERGED_GRAPH,
    TRANSFORMERS_JS,
    BundledGraph,
    WindowedGraph,
)
from edgeformer.models.graph_specs import GraphSpec, joined_graph


@dataclass(frozen=True)
class Writer:
    """The writer of one form.

    Attributes:
        wanted: whether a job has the form.
        make: makes the graph, and returns its entry in the manifest, or None where the model has no such graph.
        beside: whether it is made after the graphs over common weights are written.
    """

    wanted: Callable[[GraphJob], bool]
    make: Callable[[GraphFolder], BundledGraph | None]
    beside: bool = False


def make_graphs(out: GraphFolder, names: Iterable[str] | None = None) -> None:
    """Make the graphs of a job, and list them in the order of the table.

    names: of the forms, by default all that the job wants.
    """
    in_ort = out.job.plan.place.ort_format
    possible = (name for name, writer in WRITERS.items() if writer.wanted(out.job) and (FORMS[name].ort or not in_ort))
    wanted = list(possible if names is None else names)
    made: dict[str, BundledGraph | None] = {}
    for beside in (False, True):
        for name in (name for name in wanted if WRITERS[name].beside is beside):
            made[name] = WRITERS[name].make(out)
        if out.models:
            graphs = {name: entry.file for name, entry in made.items() if entry is not None}
            for data, files in weight_files(graphs, out.writer.shared).items():
                out.writer.write_all({file: out.models[file] for file in files}, data)
            out.models = {}
    out.graphs |= {name: entry for name in FORMS if (entry := made.get(name)) is not None}


def _lower_first(out: GraphFolder) -> BundledGraph:
    return _lower(out, out.job.model_spec.graphs[0])


def _lower_model(out: GraphFolder) -> BundledGraph:
    return _lower(out, out.job.model_spec.graphs[-1])


def _lower_other(name: str) -> "Writer":
    """Return the writer of a graph beside those that run the model."""

    def make(out: GraphFolder) -> BundledGraph:
        return _lower(out, out.job.model_spec.other_graphs[name])

    return Writer(lambda job: name in job.model_spec.other_graphs, make)


def _lower(out: GraphFolder, spec: GraphSpec) -> BundledGraph:
    """Lower one of the graphs that run the model."""
    out.models[spec.file] = out.job.captured(spec)
    out.lowered[spec.file] = out.job.lower(out.models[spec.file], spec)
    return BundledGraph(file=spec.file)


def _has_merged_decoder(job: GraphJob) -> bool:
    by_ort = job.plan.ops == "ort" and job.plan.runs_on.merged_decoder
    return _has_encoder(job) and by_ort and TRANSFORMERS_JS in job.plan.place.clients


def _merge_decoder(out: GraphFolder) -> BundledGraph:
    config = out.job.model_spec.config
    assert isinstance(config, Seq2SeqConfig)
    out.models[MERGED_GRAPH] = merged_decoder(out.models[ENCODER_GRAPH], out.models[DECODER_GRAPH], config)
    return BundledGraph(file=MERGED_GRAPH)


def _is_dual(job: GraphJob) -> bool:
    return job.model_spec.task == "dual-encoder"


def _lower_joined(out: GraphFolder) -> BundledGraph:
    return _lower(out, joined_graph(cast(DualEncoderConfig, out.job.model_spec.config)))


def _lower_alignment(out: GraphFolder) -> BundledGraph:
    entry = out.job.alignment
    assert entry is not None
    out.models[entry.file], out.lowered[entry.file] = alignment_graph(out.job, out.job.model_spec.graphs[-1])
    return entry


def _place_states(out: GraphFolder) -> BundledGraph:
    file, token = FORMS["embedding"].file, out.job.placeholder
    assert token is not None
    out.models[file] = with_states(out.models[FORMS["embed_tokens"].file], token)
    return BundledGraph(file=file)


def _has_windowed_graph(job: GraphJob) -> bool:
    plan, for_our_runtime = job.plan, job.model_spec.form == "decoder" and job.plan.ops == "ort"
    # The graph that reads pictures has caches of the whole context, and both run over one cache; so has that which
    # returns states for drafts.
    alone = not job.adapted and not job.model_spec.other_graphs
    return for_our_runtime and plan.place.windowed and alone


def _write_windowed(out: GraphFolder) -> BundledGraph | None:
    file, model_spec = FORMS["windowed"].file, out.job.model_spec
    windows = write_windowed_graph(
        out.folder / GRAPH, out.folder / file, model_spec.cache, model_spec.context_length, out.job.plan.provider
    )
    return WindowedGraph(file=file, windows=windows) if windows else None


def _has_encoder(job: GraphJob) -> bool:
    return job.model_spec.task == "seq2seq-lm"


WRITERS: dict[str, Writer] = {
    "encoder": Writer(_has_encoder, _lower_first),
    "text": Writer(_is_dual, _lower_first),
    "model": Writer(lambda job: True, _lower_model),
    "vision_encoder": _lower_other("vision_encoder"),
    "audio_encoder": _lower_other("audio_encoder"),
    "embed_tokens": _lower_other("embed_tokens"),
    "embedding": Writer(lambda job: job.placeholder is not None, _place_states),
    "embedding_decoder": _lower_other("embedding_decoder"),
    "embedding_encoder": _lower_other("embedding_encoder"),
    "mtp": _lower_other("mtp"),
    "merged": Writer(_has_merged_decoder, _merge_decoder),
    "joined": Writer(lambda job: _is_dual(job) and TRANSFORMERS_JS in job.plan.place.clients, _lower_joined),
    "alignment": Writer(lambda job: job.alignment is not None, _lower_alignment),
    "adapters": Writer(lambda job: bool(job.adapted), write_adapter_graph, beside=True),
    "windowed": Writer(_has_windowed_graph, _write_windowed, beside=True),
}
"""The writers of all forms, by name, in the order in which they run."""
