"""Whether the provider that a graph is for runs the nodes of its layers, as onnxruntime says of an open session.

A node of a layer that the provider has no kernel for runs on the CPU, which is right, and slow: its activations cross
to the host and back in every step. Nodes that compute lengths and positions run on the CPU on purpose.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from edgeformer.check.providers.kernel_table import kernel_table
from edgeformer.check.providers.typed_nodes import typed_nodes
from edgeformer.export.parity.report import Check
from edgeformer.manifest.providers import Provider
from edgeformer.runtime.sessions.providers import sessions_of


def judge_placement(graphs: Sequence[Path], sessions: Sequence[Any], provider: Provider) -> list[Check]:
    """Return the check that no node of a layer runs on the CPU; none for a provider that does not tell."""
    found, told = [], False
    for graph, session in zip(graphs, sessions, strict=True):
        names = sessions_of(provider).nodes_on_host(session)
        if names is None:
            continue
        told, on_host = True, set(names)
        nodes = typed_nodes(onnx.load(graph, load_external_data=False), kernel_table())
        found += [f"{graph.name}: {node.title}" for node in nodes if node.name in on_host and node.activation]
    if not told:
        return []
    check = Check(
        name="nodes on the CPU",
        what="; ".join(found[:5])
        or f"nodes in layers that onnxruntime runs on the CPU, of a graph for {provider.title}",
        value=float(len(found)),
        limit=0.0,
        eager=None,
        reason="a node on the CPU moves its activations to the host and back",
    )
    return [check]
