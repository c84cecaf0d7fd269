"""Replace the convolutions and recurrences of transformers' layers by our ops, for one forward pass.

    cache.update_conv_state(x) ──→ causal_conv1d_fn(x, weight)                       ops.causal_conv
    cache.get_recurrent_state() ──→ a scan of the prompt ──→ cache.update_recurrent_state(state)
                                                                                     ops.linear_attention

Layers of transformers ask the cache for their states, and have one function for a prompt and another for a step. The
patched cache answers that there is no state yet, so that the functions for prompts are called in every pass, and these
are the ones that are replaced (`SCANS`): our ops add the past, and keep padding out of it. Their interface is that of
the kernels which transformers runs in their place (causal-conv1d, flash-linear-attention, mamba-ssm).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from edgeformer import ops
from edgeformer.contract.tensors import ConvState, RecurrentState, State
from edgeformer.errors import ExportError
from edgeformer.transformers_backend.patch_plan import PatchPlan

LENGTH_EPSILON = 1e-6
"""flash-linear-attention adds this to the squared length of queries and keys, and divides them by the sum's root."""

Kept = Mapping[str, Tensor]
"""Tensors that a layer keeps between runs, by the names that `edgeformer.contract.tensors` gives them."""


class RecurrentPatch:
    """The convolutions and recurrences of one forward pass.

    presents: the tensors that each layer keeps after the pass. token_mask: bool [B, S], False for padding.
    """

    def __init__(self, plan: PatchPlan, pasts: Sequence[Kept], attention_mask: Tensor, input_ids: Tensor):
        self.plan = plan
        self.presents: dict[int, dict[str, Tensor]] = defaultdict(dict)
        self.pasts = pasts
        self._tokens = attention_mask, input_ids
        self._token_mask: Tensor | None = None
        self._convolved: tuple[int, Tensor] | None = None  # the layer whose convolution runs next, and its input
        self._scanned: int | None = None  # the layer whose scan runs next

    @property
    def token_mask(self) -> Tensor:
        """The mask of new tokens, an op of the graph only where a layer needs it."""
        if self._token_mask is None:
            self._token_mask = ops.token_mask(*self._tokens)
        return self._token_mask

    def past_state(self, layer: int, state: State) -> Tensor:
        """Return a state of a layer before the pass."""
        return self.pasts[layer][state.tensors[0]]

    # Patched code of transformers calls the methods below.

    def update_conv_state(self, x: Tensor, layer: int, state_idx: int = 0, **kwargs: object) -> Tensor:
        """Remember which layer convolves x [B, C, S] next; `causal_conv1d_fn` adds what was before."""
        if state_idx or self._convolved is not None:
            raise ExportError(
                f"layer {layer} keeps the inputs of several convolutions, or of one that is computed by code of its "
                "own, and a layer of the bundle keeps those of one. Only a family file can export it."
            )
        self._convolved = layer, x
        return x

    def get_recurrent_state(self, layer: int) -> None:
        """Remember which layer scans next."""
        self._scanned = layer

    def update_recurrent_state(self, layer: int) -> None:
        """Take the layer's new state, which the scan has reported already."""
        if not any(isinstance(state, RecurrentState) for state in self.plan.states(layer)):
            raise ExportError(
                f"layer {layer} computes its state by code of its own, not by a function that transformers has kernels "
                "for. Only a family file can export it."
            )

    def convolve(
        self, hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None,
        **options: object,
    ) -> Tensor:  # fmt: skip
        """Convolve hidden_states [B, C, S] with weight [C, K], as causal_conv1d_fn of causal-conv1d."""
        x = hidden_states
        if self._convolved is None or self._convolved[1] is not x or activation not in (None, "silu", "swish"):
            raise ExportError(
                f"a layer convolves what it did not give to the cache, or with the activation {activation}. Only a "
                "family file can export it."
            )
        layer, self._convolved = self._convolved[0], None
        past = self.past_state(layer, ConvState(channels=weight.shape[0], width=weight.shape[1] - 1))
        silu = activation is not None
        y, present = ops.causal_conv(x.transpose(1, 2), weight, bias, past, self.token_mask, silu)
        self.presents[layer]["conv"] = present
        return y.transpose(1, 2)

    def delta_rule(
        self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
        use_qk_l2norm_in_kernel: bool = False, **options: object,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Scan by the gated delta rule, as chunk_gated_delta_rule of flash-linear-attention.

        query, key [B, S, G, Dk], value [B, S, H, Dv], g, beta [B, S, H] → [B, S, H, Dv] and the state.
        """
        width = key.shape[-1]
        scale = float(scale or width**-0.5)
        if use_qk_l2norm_in_kernel:
            # A vector of length 1 has a root mean square of width^-½.
            query, key = (ops.rms_norm(heads, None, LENGTH_EPSILON / width) for heads in (query, key))
            key, scale = key * width**-0.5, scale * width**-0.5
        state = RecurrentState(num_heads=value.shape[2], key_dim=width, value_dim=value.shape[3])
        return self._scan(state, query, key, value, g, beta, scale)

    def state_space(
        self, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int = 0,
        D: Tensor | None = None, dt_bias: Tensor | None = None, dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")), **options: object,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Scan a state space of Mamba-2, as mamba_chunk_scan_combined of mamba-ssm.

        hidden_states [B, S, H, P], dt [B, S, H], A, D, dt_bias [H], B, C [B, S, G, N] → [B, S, H, P] and the state.
        """
        step = dt if dt_bias is None else dt + dt_bias
        step = F.softplus(step) if dt_softplus else step
        lowest, highest = dt_limit
        if lowest > 0 or highest != float("inf"):
            step = step.clamp(lowest, highest)
        state = RecurrentState(
            name="ssm", num_heads=hidden_states.shape[2], key_dim=B.shape[-1], value_dim=hidden_states.shape[3]
        )
        y, present = self._scan(state, C, B, hidden_states * step.unsqueeze(-1), A * step, None, 1.0)
        return y if D is None else y + hidden_states * D.unsqueeze(-1), present

    def _scan(
        self, state: RecurrentState, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if self._scanned is None:
            raise ExportError("a layer scans without asking the cache for its state. Only a family file can export it.")
        layer, self._scanned = self._scanned, None
        past = self.past_state(layer, state)
        y, present = ops.linear_attention(
            query.flatten(2), key.flatten(2), value.flatten(2), past, self.token_mask, decay, beta, scale
        )
        self.presents[layer][state.name] = present
        return y.unflatten(-1, (state.num_heads, state.value_dim)), present


Scan = Callable[..., Any]

SCANS: dict[str, Callable[[RecurrentPatch], Scan]] = {
    "causal_conv1d_fn": lambda patch: patch.convolve,
    "torch_chunk_gated_delta_rule": lambda patch: patch.delta_rule,
    "mamba2_chunk_scan": lambda patch: patch.state_space,
}
"""Functions in transformers' modeling files that are replaced, by name: those that stand for kernels."""
