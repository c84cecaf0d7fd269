"""Judge the LoRA adapters of a bundle: the adapter graph with each, against PyTorch with what the adapter adds."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from safetensors.torch import load_file

from edgeformer.export.adapter_graph import stored_updates
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.parity.float_products import open_unrounded
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.trials.decoder import DecoderTrial
from edgeformer.export.parity.trials.protocol import Setup
from edgeformer.lora.adapted_spec import with_updates
from edgeformer.lora.adapter_tensors import Update
from edgeformer.manifest.graph_forms import BundledGraphs
from edgeformer.manifest.parts import BundledAdapter
from edgeformer.manifest.quantization import WeightFormat
from edgeformer.runtime.sessions.kernels import BODIES, KernelChoice
from edgeformer.runtime.sessions.session import open_session
from edgeformer.runtime.steps.adapters import AdaptedSession, read_adapter

Updates = Mapping[str, Mapping[str, Update]]


def adapter_trials(
    setup: Setup, adapters: Updates, formats: Mapping[str, WeightFormat], kernels: KernelChoice
) -> Iterator[tuple[str, Callable[[], list[Check]]]]:
    """Yield a name and a function that tries each adapter: without rounding of activations, then as used.

    setup: of the decode graph. adapters: what each adapter adds, by its name; of one that is not there, the bundle's
    own file says what. formats: of quantized weights, by parameter. kernels: that clients run the graph with.
    """
    graph = setup.manifest.adapter_graph
    if graph is None:
        return
    manifest = replace(setup.manifest, graphs=BundledGraphs(model=graph, adapters=graph))
    setup = replace(setup, manifest=manifest, mode="quick", references=None)
    opened: dict[KernelChoice | None, Any] = {}

    def judge(adapter: BundledAdapter, chosen: KernelChoice | None) -> list[Check]:
        if chosen not in opened:
            path = setup.folder / graph.file
            if chosen is None:
                [opened[chosen]] = open_unrounded([path], setup.provider, formats.values())
            else:
                opened[chosen] = open_session(path, setup.provider, kernels=chosen)
        session = AdaptedSession(opened[chosen], read_adapter(setup.folder, manifest, adapter.name))
        updates = adapters.get(adapter.name) or _stored(setup, adapter)
        dtype = TORCH_PRECISIONS[manifest.plan.arithmetic]
        spec = with_updates(setup.model_spec, {name: update.to(dtype) for name, update in updates.items()})
        activations = None if chosen is None else formats
        trial = DecoderTrial(replace(setup, model_spec=spec, activations=activations), [session])
        trial.run()
        return trial.judge.checks

    for adapter in setup.manifest.adapters:
        yield f"adapter {adapter.name}, ", partial(judge, adapter, None)
        if formats:
            yield f"adapter {adapter.name}, int8 activations, ", partial(judge, adapter, BODIES)
        if kernels.library is not None:
            yield f"adapter {adapter.name}, kernels, ", partial(judge, adapter, kernels)


def _stored(setup: Setup, adapter: BundledAdapter) -> dict[str, Update]:
    """Return what a bundle's own file says that an adapter adds."""
    graph = setup.manifest.adapter_graph
    assert graph is not None
    tensors = load_file(setup.folder / adapter.file)
    return stored_updates(graph, tensors, setup.model_spec.parameter_shapes())
