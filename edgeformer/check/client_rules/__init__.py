"""The clients that `edgeformer check` knows, with the rules of each in one file.

The rules of a client take the facts about a folder and yield findings. No finding means that the client loads the
folder and generates the same tokens as other clients.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgeformer.check.client_rules.edgeformer import edgeformer_findings
from edgeformer.check.client_rules.genai import genai_findings
from edgeformer.check.client_rules.onnxruntime import buffer_findings, loop_findings
from edgeformer.check.client_rules.optimum import optimum_findings
from edgeformer.check.client_rules.transformers_js import browser_findings, node_findings
from edgeformer.check.finding import Finding
from edgeformer.check.folder import Folder


@dataclass(frozen=True)
class Client:
    """A program that opens bundles: a description, and its rules."""

    what: str
    findings: Callable[[Folder], Iterator[Finding]]


CLIENTS = {
    "edgeformer": Client("edgeformer run, embed", edgeformer_findings),
    "onnxruntime": Client("your own loop, any language", loop_findings),
    "onnxruntime-cpp": Client("C++ and C# examples", buffer_findings),
    "onnxruntime-genai": Client("version 0.18", genai_findings),
    "transformers.js-node": Client("version 4.3", node_findings),
    "transformers.js-browser": Client("version 4.3, WebAssembly or WebGPU", browser_findings),
    "optimum": Client("optimum-onnx 0.1", optimum_findings),
}
