"""Requirements of WebGPU kernels of onnxruntime beyond types: attributes, and which inputs a node has.

`tests/check/test_webgpu_provider.py` runs a node on either side of every rule on an adapter, one in software, too, and
compares with the CPU: a newer plugin that lifts one fails there.
"""

from collections.abc import Iterator

from edgeformer.check.providers.attribute_rules import Broken, Rules, input_of
from edgeformer.check.providers.typed_nodes import TypedNode
from edgeformer.contract.ops import ATTENTION, QUANTIZED_EXPERTS, SOURCE_ATTENTION

SOURCE = "tests/check/webgpu_cases.py"


def _attention(node: TypedNode) -> Iterator[Broken]:
    if node.attributes.get("softcap", 0.0):
        yield Broken("it has a soft-cap, which the kernel ignores", SOURCE)
    if not node.attributes.get("causal", 1):
        yield Broken("it is not causal, and the kernel is", SOURCE)


def _source_attention(node: TypedNode) -> Iterator[Broken]:
    if input_of(node, "key_padding_mask") is not None:
        yield Broken("it has a mask of padding, which the kernel does not take", SOURCE)


def _quantized_experts(node: TypedNode) -> Iterator[Broken]:
    yield Broken("the kernel is wrong in a run of more than one token", SOURCE)


RULES: Rules = {
    ATTENTION.key: _attention,
    SOURCE_ATTENTION.key: _source_attention,
    QUANTIZED_EXPERTS.key: _quantized_experts,
}
