"""Sessions on any GPU, by WebGPU."""

from pathlib import Path
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import WEBGPU
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions
from edgeformer.runtime.sessions.providers.provider_sessions import ProviderSessions, WhyNot
from edgeformer.runtime.sessions.providers.webgpu_buffers import (
    largest_buffer,
    largest_weight,
    megabytes,
    refusal_of,
    too_large,
)
from edgeformer.runtime.sessions.providers.webgpu_machine import (
    MOST_QUERIES,
    attends_wrongly,
    lacks_float16,
    plugin_version,
    use_webgpu,
    webgpu_machine,
)
from edgeformer.runtime.sessions.providers.webgpu_options import WebGpuOptions

ON_THE_CPU = "To run without a GPU, use provider cpu."


class WebGpuSessions(ProviderSessions):
    """The sessions of WebGPU, whose provider is a plugin: options of a session name its devices."""

    provider = WEBGPU
    options = WebGpuOptions

    def why_not(self, ort: Any, manifest: Manifest, given: ProviderOptions | None = None) -> WhyNot | None:
        """Return why `auto` is not WebGPU; None where it is, for a bundle that was exported for it, on a GPU."""
        if plugin_version() is None:
            return WhyNot(
                "the plugin for WebGPU is not installed", "Install it: pip install 'edgeformer[webgpu]'", False
            )
        machine = webgpu_machine(ort, self.own(given))
        if machine.problem is not None or machine.software:
            return WhyNot(f"WebGPU found no GPU: {machine}", "To run without this warning, use provider cpu", False)
        if manifest.plan.provider != WEBGPU.name:
            advice = "To use the GPU of this machine, export it with --provider webgpu"
            return WhyNot(f"this bundle is for {manifest.plan.runs_on.title}", advice, True)
        if self._lacks(ort, manifest, given):
            return WhyNot("the GPU has no float16", "To use it, export the bundle with --precision fp32 or int4", True)
        return None

    def check(self, ort: Any, manifest: Manifest, given: ProviderOptions | None = None) -> None:
        """Raise RequestError for a bundle that is for another provider, and if WebGPU cannot start."""
        if manifest.plan.provider != WEBGPU.name:
            raise RequestError(
                f"this bundle is for {manifest.plan.runs_on.title}, and some kernels of WebGPU compute something else "
                "than its graph may say (a soft-cap of scores is ignored). Export it with --provider webgpu."
            )
        machine = webgpu_machine(ort, self.own(given))
        if machine.problem is not None:
            problem = f"{machine.problem[:1].upper()}{machine.problem[1:]}"
            raise RequestError(f"provider webgpu cannot start: {machine}. {problem}. {ON_THE_CPU}")
        if self._lacks(ort, manifest, given):
            raise RequestError(
                f"this bundle computes in float16, and the adapter has none (WebGPU's feature shader-f16): {machine}. "
                "Export it with --precision fp32, int8 or int4 and without --arithmetic fp16."
            )

    def execution_providers(self, given: ProviderOptions | None = None) -> list[Any]:
        """Return none: a plugin's devices are named by the options of a session."""
        return []

    def choose(self, ort: Any, session_options: Any, given: ProviderOptions | None = None) -> list[Any]:
        """Name the devices in the options of a session, which is to remember where its nodes run."""
        session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        use_webgpu(ort, session_options, self.own(given))
        return []

    def on_this_machine(self, ort: Any) -> str:
        """Return the versions and the device, as a sentence."""
        return f" On this machine {webgpu_machine(ort, WebGpuOptions())}."

    def advice(self, error: Exception) -> str:
        """Return a sentence on an error of a run that the adapter had no buffer for; empty for others."""
        return too_large(error)

    def check_weights(self, ort: Any, graph: Path, given: ProviderOptions | None = None) -> None:
        """Raise RequestError for a graph whose largest weight does not fit into a buffer of the adapter."""
        options, (name, size) = self.own(given), largest_weight(graph)
        refusal = refusal_of(ort, options, size)
        if refusal is not None:
            raise RequestError(
                f"{graph} has a weight, {name}, of {megabytes(size)}, and the adapter has no buffer of that size "
                f"({refusal}); one of {megabytes(largest_buffer(ort, options, size))} works. Export the model with "
                f"--precision int4 or int8, which makes it smaller. {ON_THE_CPU}"
            )

    def environment(self, ort: Any) -> dict[str, str]:
        """Return what a report of verification says about the device."""
        return {"device": str(webgpu_machine(ort, WebGpuOptions()))}

    def most_tokens(self, ort: Any) -> int | None:
        """Return the most tokens of a row in one run: on some adapters, attention of more is wrong."""
        return MOST_QUERIES if attends_wrongly(ort, WebGpuOptions()) else None

    def nodes_on_host(self, session: Any) -> list[str] | None:
        """Return the names of the nodes that an open session runs on the CPU."""
        parts = session.get_provider_graph_assignment_info()
        return [node.name for part in parts if part.ep_name != WEBGPU.execution_provider for node in part.get_nodes()]

    def check_opened(self, ort: Any, session: Any) -> None:
        """Raise RequestError for a session that has nothing on WebGPU."""
        if WEBGPU.execution_provider not in session.get_providers():
            raise RequestError(
                f"onnxruntime runs no node of the graph on WebGPU.{self.on_this_machine(ort)} {ON_THE_CPU}"
            )

    def lacks_machine(self, ort: Any, manifest: Manifest) -> bool:
        """Return whether there is no plugin or adapter, or none for the arithmetic of a bundle."""
        return webgpu_machine(ort, WebGpuOptions()).problem is not None or self._lacks(ort, manifest, None)

    def _lacks(self, ort: Any, manifest: Manifest, given: ProviderOptions | None) -> bool:
        """Return whether a bundle computes in float16 and the adapter cannot."""
        return manifest.plan.arithmetic == "fp16" and lacks_float16(ort, self.own(given))
