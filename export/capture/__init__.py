"""Capture: trace a module under fake tensors into the canonical ONNX graph, without its weights."""

from edgeformer.export.capture.checked import capture_graph

__all__ = ["capture_graph"]
