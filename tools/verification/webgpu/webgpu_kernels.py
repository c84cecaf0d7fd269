"""Write the table of kernels that `edgeformer check --provider webgpu` reads, by asking onnxruntime's plugin.

    VK_ICD_FILENAMES=/usr/lib/chromium/vk_swiftshader_icd.json python tools/verification/webgpu/webgpu_kernels.py

The plugin publishes no list of its kernels. onnxruntime asks it for each node of a graph whether it takes it, before
any kernel is made: a session of one node that may not fall back to the CPU fails there if it does not. So types can be
asked for that the adapter cannot compute, and any adapter will do, one in software, too.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import click
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as state

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from edgeformer.check.providers.kernel_table import PROBED
from edgeformer.runtime.sessions.providers.webgpu_machine import PLUGIN, use_webgpu
from edgeformer.runtime.sessions.providers.webgpu_options import WebGpuOptions
from verification.cuda.cuda_kernels import merged, text_of
from verification.webgpu.op_signatures import Kinds, Signature, signatures

REFUSED = "EP_FAIL"
"""onnxruntime's word for an error of a provider: it took the node, and its kernel refuses the one that was tried."""


class Plugin:
    """Sessions on onnxruntime's WebGPU plugin alone."""

    def __init__(self) -> None:
        self._settings = ort.SessionOptions()
        self._settings.log_severity_level = 4
        self._settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        self._settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        use_webgpu(ort, self._settings, WebGpuOptions(allow_software=True))
        self.refused: dict[str, str] = {}

    def takes(self, op: Signature, kinds: Kinds) -> bool:
        """Return whether it takes a node of these types; False for types that are not valid together."""
        try:
            session = ort.InferenceSession(op.model(kinds), self._settings)
        except Exception as error:  # onnxruntime's errors have no common class
            if REFUSED in str(error):
                self.refused[f"{op.key} {op.version}"] = str(error)
            return REFUSED in str(error)
        # What has no kernel may have been opened as the function that ONNX defines it as.
        parts = session.get_provider_graph_assignment_info()
        return any(node.op_type == op.name for part in parts for node in part.get_nodes())


def rows_of(plugin: Plugin, op: Signature) -> Iterator[dict[str, tuple[str, ...]]]:
    """Yield the types by type variable that the plugin takes, of one version of an op."""
    for chosen in product(*(op.types[each] for each in op.needed)):
        kinds = dict(zip(op.needed, chosen, strict=True))
        if not plugin.takes(op, kinds):
            continue
        row = {name: (kind,) for name, kind in kinds.items()}
        for variable in op.optional:
            taken = tuple(kind for kind in op.types[variable] if plugin.takes(op, kinds | {variable: kind}))
            row |= {variable: taken} if taken else {}
        yield row


def kernels_of(plugin: Plugin) -> dict[str, list[Any]]:
    """Return the kernels of the plugin: by op, first and last version, and types by type variable."""
    found: dict[str, list[Any]] = defaultdict(list)
    before: dict[str, list[Any]] = {}
    for op in signatures(state.get_all_operator_schema()):
        rows = [
            [op.version, None, types]
            for _, _, types in merged([(op.version, None, row) for row in rows_of(plugin, op)])
        ]
        # A row of the version before goes on if it has the same types.
        rows = [next((row for row in before.get(op.key, []) if row[2] == each[2]), each) for each in rows]
        for row in rows:
            row[1] = op.version if row[0] != op.version else None
        found[op.key] += [row for row in rows if row[0] == op.version]
        before[op.key] = rows
        click.echo(f"{op.key} {op.version}: {len(rows)}", err=True)
    return {op: rows for op, rows in sorted(found.items()) if rows}


@click.command(help=(__doc__ or "").split("\n", maxsplit=1)[0])
@click.option("--write", type=click.Path(path_type=Path), default=PROBED["webgpu"], help="File to write.")
def main(write: Path) -> None:
    """Write the table."""
    plugin = Plugin()
    kernels = kernels_of(plugin)
    for op, said in sorted(plugin.refused.items()):
        click.echo(f"{op} is taken, and its kernel refuses the node that was tried: {said[:300]}", err=True)
    table = {
        "onnxruntime": ort.__version__,
        "package": f"{PLUGIN} {version(PLUGIN)}",
        "source": "tools/verification/webgpu/webgpu_kernels.py",
        "webgpu": kernels,
    }
    write.write_text(text_of(table), encoding="utf-8")
    click.echo(f"{write}: {len(kernels)} ops on WebGPU", err=True)


if __name__ == "__main__":
    main()
