"""A shim around torch.export and torch.onnx.export, which skips what would change nothing.

torch.export does for every node what nothing here needs, and `traced_leanly` leaves it out, for two fifths of the time:

- it notes where in the sources the node was called, for which it walks the stack and reads lines;
- it writes the program as Python code each time that it changes, and compiles that;
- it notes in which memory formats what the node gives is contiguous, for which it compares products of symbolic sizes;
- it remembers the shapes that an op gave, for which it compares and hashes symbolic sizes: that takes longer than to
  find them again;
- it finds the shapes of products, norms and elementwise ops by decomposing them, and they are known
  (`known_shapes.py`).

Between `torch.export.export` and the translation to ONNX, torch.onnx.export traces the program again to decompose
composite ops, and interprets it to find implicit type promotions. Both take longer than everything else that it does.
Most of our programs promote no type (`reused_tables.py` is about the others), and their few composite ops are
decomposed here, node by node, as torch would. torch has no option for this, so the shim overrides one method of the
program and one of its graph module, on these instances alone.

Checked with the torch versions in `CHECKED`, on which the skipped stages are `ExportedProgram.run_decompositions` and
loops over `GraphModule.modules()` (torch/onnx/_internal/exporter/_fx_passes.py). On any other version nothing is
skipped: the export is slower and gives the same graph. tests/export/test_capture.py compares the graphs and fails on a
version that is not listed; add the version once these tests pass with it.
"""

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.fx.config
from torch import Tensor
from torch.export import ExportedProgram

from edgeformer.export.capture.checked_torch import LOCK, is_checked
from edgeformer.export.capture.known_shapes import shapes_by_rule
from edgeformer.export.capture.reused_tables import PROMOTING
from edgeformer.export.graph.canonical import OPS

aten = torch.ops.aten

ARITHMETIC = {
    aten.add.Tensor, aten.div.Tensor, aten.floor_divide.default, aten.mul.Tensor, aten.remainder.Scalar,
    aten.remainder.Tensor, aten.rsub.Scalar, aten.sub.Tensor,
}  # fmt: skip
"""Ops whose numbers torch makes tensors of."""

ELEMENTWISE = ARITHMETIC - {aten.rsub.Scalar} | {
    aten.abs.default, aten.bitwise_not.default, aten.bitwise_or.Tensor, aten.cat.default, aten.clamp.default,
    aten.eq.Scalar, aten.eq.Tensor, aten.exp.default, aten.gelu.default, aten.ge.Scalar, aten.gt.Scalar,
    aten.log.default, aten.lt.Scalar, aten.maximum.default, aten.minimum.default, aten.ne.Scalar, aten.neg.default,
    aten.pow.Tensor_Scalar, aten.reciprocal.default, aten.relu.default, aten.rsqrt.default, aten.sigmoid.default,
    aten.silu.default, aten.softplus.default, aten.sqrt.default, aten.sum.dim_IntList, aten.tanh.default,
    aten.where.self,
}  # fmt: skip
"""Ops that promote types: their inputs may have different types, or another type than the output."""

REDUCTIONS = {aten.amax.default, aten.cumsum.default, aten.mean.dim, aten.sum.dim_IntList}
"""Ops that may compute in another type than that of their inputs."""

NOT_COMPOSITE = ELEMENTWISE | {
    operator.floordiv, operator.getitem, operator.mul, operator.sub, *OPS.values(),
    aten._assert_tensor_metadata.default, aten.alias.default, aten.amax.default, aten.arange.default,
    aten.conv1d.default, aten.conv2d.default, aten.cumsum.default, aten.einsum.default, aten.embedding.default,
    aten.expand.default, aten.gather.default, aten.index.Tensor, aten.index_select.default, aten.layer_norm.default,
    aten.lift_fresh_copy.default, aten.linalg_vector_norm.default, aten.linear.default, aten.masked_fill.Scalar,
    aten.matmul.default, aten.mean.dim, aten.ones.default, aten.ones_like.default, aten.pad.default,
    aten.permute.default, aten.select.int, aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default,
    aten.squeeze.dim, aten.stack.default, aten.sym_size.int, aten.t.default, aten.topk.default, aten.transpose.int,
    aten.unbind.int, aten.unsqueeze.default, aten.view.default, aten.zeros.default,
}  # fmt: skip
"""Ops that torch.onnx.export does not decompose."""

SIZE = aten.sym_size.int
"""The op that reads a size; a program begins with these."""


@contextmanager
def traced_leanly(version: str = torch.__version__) -> Iterator[None]:
    """Let torch.export note, remember and decompose no more than the shapes of nodes take. version: of torch."""
    if not is_checked(version):
        yield
        return
    from torch.fx._lazy_graph_module import _use_lazy_graph_module
    from torch.fx.experimental import proxy_tensor
    from torch.fx.passes.shape_prop import _extract_tensor_metadata

    metadata = functools.partial(_extract_tensor_metadata, include_contiguity=False)
    with (
        LOCK,
        patch.object(torch.fx.config, "do_not_emit_stack_traces", True),
        patch.object(proxy_tensor, "_extract_tensor_metadata", metadata),
        torch._dynamo.config.patch(fake_tensor_cache_enabled=False),
        _use_lazy_graph_module(True),
        shapes_by_rule(),
    ):
        yield


def skip_needless_stages(program: ExportedProgram, version: str = torch.__version__) -> ExportedProgram:
    """Return a program for which torch.onnx.export skips the stages that would leave it as it is; it is changed in
    place.

    version: of torch.
    """
    for node in program.graph.find_nodes(op="call_function", target=aten.promote_types.default):
        if not node.users:  # the type that it found is an argument of other nodes
            program.graph.erase_node(node)
    nodes = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    sizes = _Sizes(program.graph)
    if not is_checked(version) or not all(node.target in NOT_COMPOSITE or _is_known(node, sizes) for node in nodes):
        return program
    promoting = [node for node in nodes if _promotes(node)]
    if not all(map(_is_interpreted, promoting)):
        return program
    for node in nodes:
        sizes.take(node)
        if node.target in DECOMPOSED:
            DECOMPOSED[node.target](node, sizes)
    _override(program, "run_decompositions", lambda decompositions=None: program)
    program.graph_module.meta[PROMOTING] = promoting
    if not promoting:
        for node in nodes:
            if node.target is aten._assert_tensor_metadata.default:
                program.graph.erase_node(node)
        # torch.onnx.export looks for type promotions and assertions in each of these modules.
        _override(program.graph_module, "modules", lambda: ())
    return program


class _Sizes:
    """The nodes that read the sizes of a program's inputs, or multiply them, by the expressions of what they give."""

    def __init__(self, graph: torch.fx.Graph):
        self._graph = graph
        self._nodes: dict[Any, torch.fx.Node] = {}
        for node in itertools.takewhile(lambda node: node.op == "placeholder" or node.target is SIZE, graph.nodes):
            self.take(node)

    def take(self, node: torch.fx.Node) -> None:
        """Use what a node computes in those behind it, if it is a size."""
        if isinstance(node.meta.get("val"), torch.SymInt):
            self._nodes.setdefault(node.meta["val"].node.expr, node)

    def __contains__(self, size: int | torch.SymInt) -> bool:
        return isinstance(size, int) or size.node.expr in self._nodes

    def of(self, size: int | torch.SymInt) -> Any:
        """Return a size as an argument of nodes."""
        return size if isinstance(size, int) else self._nodes[size.node.expr]

    def product(self, sizes: Sequence[int | torch.SymInt], node: torch.fx.Node) -> Any:
        """Return the product of sizes as an argument of a node, before which it is computed."""
        product: Any = sizes[0]
        for size in sizes[1:]:
            factors, product = (self.of(product), self.of(size)), product * size
            if product not in self:
                with self._graph.inserting_before(node):
                    computed = self._graph.call_function(operator.mul, factors)
                computed.meta = node.meta | {"val": product}
                self._nodes[product.node.expr] = computed
        return self.of(product)


def _cast(node: Any, sizes: _Sizes) -> None:
    """Make a copy of `to`, or nothing."""
    value, dtype = node.args
    same = value.meta["val"].dtype == dtype
    node.target, node.args = (aten.alias if same else aten._to_copy).default, (value,)
    node.kwargs = {} if same else {"dtype": dtype}


def _alias(node: Any, sizes: _Sizes) -> None:
    """Make the same values, whatever their strides: ONNX knows none."""
    node.target, node.kwargs = aten.alias.default, {}


def _square(node: Any, sizes: _Sizes) -> None:
    node.target, node.args = aten.pow.Tensor_Scalar, (*node.args, 2)


def _or(node: Any, sizes: _Sizes) -> None:
    node.target = aten.bitwise_or.Tensor


def _subtract_from(node: Any, sizes: _Sizes) -> None:
    """Make a difference whose first part is the number."""
    node.target, node.args = aten.sub.Tensor, (node.args[1], node.args[0])


def _reshape(node: Any, sizes: _Sizes) -> None:
    """Make a view, even where torch would copy: ONNX knows no strides."""
    node.target = aten.view.default


def _flatten(node: Any, sizes: _Sizes) -> None:
    shape, first, last = _flattened(node)
    flat = sizes.product(shape[first : last + 1], node)
    node.args = (node.args[0], [*map(sizes.of, shape[:first]), flat, *map(sizes.of, shape[last + 1 :])])
    node.target = aten.view.default


def _flattened(node: Any) -> tuple[Any, int, int]:
    """Return the shape of what `flatten` is given, and the first and the last axis that it makes one of."""
    value, *axes = node.args
    defaults = [0, -1]
    first, last = axes + defaults[len(axes) :]
    shape = value.meta["val"].shape
    return shape, first % len(shape), last % len(shape)


def _unflatten(node: Any, sizes: _Sizes) -> None:
    node.target, node.args = aten.view.default, (node.args[0], list(map(sizes.of, node.meta["val"].shape)))


DECOMPOSED = {
    aten.contiguous.default: _alias,
    aten.detach_.default: _alias,
    aten.to.dtype: _cast,
    aten.square.default: _square,
    aten.__or__.Tensor: _or,
    aten.rsub.Scalar: _subtract_from,
    aten.reshape.default: _reshape,
    aten.flatten.using_ints: _flatten,
    aten.unflatten.int: _unflatten,
}
"""Composite ops, and what makes of a node what torch.onnx.export would decompose it into."""

RESHAPES = {aten.reshape.default, aten.flatten.using_ints, aten.unflatten.int}
"""Composite ops that become views."""


def _is_known(node: Any, sizes: _Sizes) -> bool:
    """Whether this is a composite op that can be decomposed here: a program may compute none of the sizes it needs."""
    if node.target not in DECOMPOSED or node.kwargs:
        return False
    if node.target in (aten.to.dtype, aten.rsub.Scalar):
        return len(node.args) == 2
    if node.target is aten.flatten.using_ints:
        shape = node.args[0].meta["val"].shape
        return len(shape) > 0 and all(size in sizes for size in shape)
    return node.target is not aten.unflatten.int or all(size in sizes for size in node.meta["val"].shape)


def _is_interpreted(node: Any) -> bool:
    """Whether torch can interpret what is made of a node: views that copy nothing, no number minus a tensor."""
    if node.target not in RESHAPES:
        return node.target is not aten.rsub.Scalar
    try:
        node.args[0].meta["val"].view(node.meta["val"].shape)
    except (RuntimeError, ValueError):
        return False
    return True


def _override(instance: object, method: str, replacement: Any) -> None:
    """Override a method of one instance."""
    assert hasattr(type(instance), method), f"torch has no {type(instance).__name__}.{method} any more"
    object.__setattr__(instance, method, replacement)


def _promotes(node: torch.fx.Node) -> bool:
    """Whether an op computes in another type than that of its inputs; Python's numbers count as float32 and int64."""
    if node.target in REDUCTIONS and node.meta["val"].dtype in (torch.float16, torch.bfloat16):
        return True  # torch sums them in float32
    if node.target not in ELEMENTWISE | ARITHMETIC:
        return False
    types = {each.meta["val"].dtype for each in node.all_input_nodes if isinstance(each.meta["val"], Tensor)}
    types |= {torch.float32 for each in node.args if isinstance(each, float)}
    if node.target in ARITHMETIC:
        types |= {torch.int64 for each in node.args if isinstance(each, int)}
    return len(types) > 1 or node.meta["val"].dtype not in {torch.bool, *types}
