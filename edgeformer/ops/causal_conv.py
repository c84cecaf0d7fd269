"""Causal depthwise convolution that keeps its last inputs."""

import torch
from torch import Tensor
from torch.nn import functional as F


@torch.library.custom_op("edgeformer::causal_conv", mutates_args=())
def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor, token_mask: Tensor, silu: bool
) -> tuple[Tensor, Tensor]:
    """Return y[t] = bias + Σ_k weight[k] · x[t − K + 1 + k], per channel, [B, S, C], and the present state.

    x           [B, S, C]
    weight      [C, K]; its last column multiplies the token itself
    bias        [C]; None is zero
    past        [B, C, K − 1], the inputs before x, newest last; zeros where nothing precedes
    token_mask  bool [B, S], False for padding
    silu        y · sigmoid(y) is returned instead of y

    The present state [B, C, K − 1] holds the last K − 1 inputs of past and x together. Padding may stand anywhere: it
    enters neither the y of tokens nor the present state, as if the row had none, and its own y means nothing.
    Source: `CausalConvWithState` of ONNX, opset 27; `causal_conv1d_fn` of transformers' modeling_mamba2.py.
    """
    batch, _, channels = x.shape
    reach = weight.shape[1] - 1
    order = (~token_mask).int().argsort(dim=1, stable=True)  # tokens first, then padding
    ordered = x.gather(1, order.unsqueeze(-1).expand_as(x)).transpose(1, 2)  # [B, C, S]
    inputs = torch.cat((past, ordered), 2)  # [B, C, K − 1 + S]
    y = F.conv1d(inputs, weight.unsqueeze(1), bias, groups=channels).transpose(1, 2)  # [B, S, C]
    y = torch.empty_like(y).scatter(1, order.unsqueeze(-1).expand_as(y), y)
    ends = token_mask.sum(1, keepdim=True) + torch.arange(reach, device=x.device)  # [B, K − 1]
    present = inputs.gather(2, ends.unsqueeze(1).expand(batch, channels, reach))
    return F.silu(y) if silu else y, present


@causal_conv.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor, token_mask: Tensor, silu: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(past)
