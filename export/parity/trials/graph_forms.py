"""The trials of forms of graphs that are not tried together with the graphs that run the model, by form."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from edgeformer.export.parity.block_products import BlockProducts
from edgeformer.export.parity.float_products import open_unrounded
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.trials.adapters import Updates, adapter_trials
from edgeformer.export.parity.trials.half_cache import compare_half_cache, open_float_products, with_wide_cache
from edgeformer.export.parity.trials.mtp import mtp_trials
from edgeformer.export.parity.trials.pictures.picture_encoder import judge_pictures
from edgeformer.export.parity.trials.pictures.picture_text import PictureTextTrial
from edgeformer.export.parity.trials.pictures.placed_states import judge_placed
from edgeformer.export.parity.trials.protocol import Setup
from edgeformer.manifest.quantization import WeightFormat
from edgeformer.runtime.sessions.kernels import BODIES, KernelChoice
from edgeformer.runtime.sessions.session import open_session


@dataclass(frozen=True, kw_only=True)
class FormSetup:
    """The inputs of the trials of a form.

    Attributes:
        setup: that of the graphs that run the model.
        adapters: what each adapter adds to the weights, by its name; what is not there, the bundle's own files say.
        formats: of quantized weights, by parameter.
        kernels: that clients run the graphs with.
    """

    setup: Setup
    adapters: Updates
    formats: Mapping[str, WeightFormat]
    kernels: KernelChoice


FormTrials = Callable[[FormSetup], Iterator[tuple[str, Callable[[], list[Check]]]]]
"""Yields how the names of checks begin, and the function that makes these checks."""


def _of_adapter_graph(given: FormSetup) -> Iterator[tuple[str, Callable[[], list[Check]]]]:
    return adapter_trials(given.setup, given.adapters, given.formats, given.kernels)


def _of_pictures(given: FormSetup) -> Iterator[tuple[str, Callable[[], list[Check]]]]:
    """The graphs are tried together, as each reads what another made: without rounding of activations, then as used."""
    setup, graphs = given.setup, given.setup.manifest.graphs
    tower, media = ("vision_encoder", "pictures") if "vision_encoder" in graphs else ("audio_encoder", "recordings")
    reader = "embedding_decoder" if "embedding_decoder" in graphs else "embedding_encoder"
    files = [setup.folder / graphs[name].file for name in ("model", reader, tower, "embed_tokens")]
    half = setup.manifest.plan.half_cache

    def unrounded(*, widened: bool) -> list[Any]:
        """Open the graphs without rounding of activations. widened: whether a float16 cache becomes float32."""
        if not half:
            return open_unrounded(files, setup.provider, given.formats.values())
        products, manifest = BlockProducts(), setup.manifest
        return [open_float_products(each, manifest, setup.provider, products, widened=widened) for each in files]

    def judge(chosen: KernelChoice | None) -> list[Check]:
        if chosen is None:
            wide = replace(setup, manifest=with_wide_cache(setup.manifest)) if half else setup
            return judge_pictures(wide, *unrounded(widened=True))
        sessions = [open_session(file, setup.provider, kernels=chosen) for file in files]
        return judge_pictures(replace(setup, references=None, activations=given.formats), *sessions)

    def judge_half() -> list[Check]:
        wide = replace(setup, manifest=with_wide_cache(setup.manifest))
        trials = (PictureTextTrial(each, *unrounded(widened=each is wide)).with_pictures() for each in (setup, wide))
        (graph, tokens, ends), (widened, _, _) = trials
        return compare_half_cache(graph, widened, tokens, ends)

    yield f"{media}, ", partial(judge, None)
    if half:
        yield f"{media}, fp16 cache, ", judge_half
    if given.formats:
        yield f"{media}, int8 activations, ", partial(judge, BODIES)
    if given.kernels.library is not None:
        yield f"{media}, kernels, ", partial(judge, given.kernels)


def _of_placed_states(given: FormSetup) -> Iterator[tuple[str, Callable[[], list[Check]]]]:
    setup, graphs = given.setup, given.setup.manifest.graphs

    def judge() -> list[Check]:
        files = (setup.folder / graphs[name].file for name in ("embed_tokens", "embedding"))
        return judge_placed(setup, *(open_session(file, setup.provider, kernels=BODIES) for file in files))

    yield "embeddings with states of pictures, ", judge


def _of_drafts(given: FormSetup) -> Iterator[tuple[str, Callable[[], list[Check]]]]:
    return mtp_trials(given.setup, given.formats, given.kernels)


FORM_TRIALS: dict[str, FormTrials] = {
    "embedding": _of_placed_states,
    "adapters": _of_adapter_graph, "mtp": _of_drafts, "vision_encoder": _of_pictures, "audio_encoder": _of_pictures,
}  # fmt: skip
