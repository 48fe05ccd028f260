"""Layers with separate parameters for each agent, over the samples of all agents in one batch.

x is [A * B, ...], agent after agent, and parameters are [A, ...]. Plain torch, for any device: the reference of what
the kernels compute.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peermask.models.layout import ChannelAffine

_CONV = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


def knows(layer: nn.Module) -> bool:
    """Whether a layer with parameters can be computed here. Types are compared exactly: a subclass may differ."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return type(layer) in _CONV and layer.padding_mode == "zeros"
    if isinstance(layer, nn.Embedding):
        return type(layer) is nn.Embedding and layer.padding_idx is None and layer.max_norm is None
    return type(layer) in (nn.Linear, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, ChannelAffine)


def compute(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a layer with each agent's weight and bias."""
    agents = len(weight)
    match layer:
        case nn.Linear():
            return _linear(x, weight, bias)
        case nn.Conv2d() if _is_pointwise(layer):
            rows = x[:, :, :: layer.stride[0], :: layer.stride[1]].permute(0, 2, 3, 1)  # [A * B, H, W, C]
            return _linear(rows, weight.flatten(2), bias).permute(0, 3, 1, 2)
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            return _convolution(layer, x, weight, bias)
        case nn.GroupNorm():
            return by_channel(F.group_norm(x, layer.num_groups, eps=layer.eps), weight, bias)
        case nn.LayerNorm():
            return _affine(F.layer_norm(x, layer.normalized_shape, eps=layer.eps), weight, bias)
        case nn.RMSNorm():
            return _affine(F.rms_norm(x, list(layer.normalized_shape), eps=layer.eps), weight, bias)
        case nn.Embedding():
            first = torch.arange(agents, device=x.device) * layer.num_embeddings  # [A]
            rows = x.unflatten(0, (agents, -1)) + first.view(-1, *(1,) * x.dim())
            return F.embedding(rows.flatten(0, 1), weight.flatten(0, 1))
    return by_channel(x, weight, bias)


def by_channel(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x_c · weight_c + bias_c, channels second."""
    aside = (1,) * (x.dim() - 2)
    return _affine(x, weight.unflatten(1, (-1, *aside)), None if bias is None else bias.unflatten(1, (-1, *aside)))


def beside(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter [A, ...] shaped so that it broadcasts with samples [A, B, ...] as an agent's own would."""
    missing = x.dim() + 1 - parameter.dim()
    return parameter.view(len(parameter), *(1,) * missing, *parameter.shape[1:])


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    own = x.unflatten(0, (len(weight), -1))  # [A, B, ...]
    y = own * beside(weight, x) if bias is None else torch.addcmul(beside(bias, x), own, beside(weight, x))
    return y.flatten(0, 1)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    agents, out, into = weight.shape
    y = x.reshape(agents, -1, into) @ weight.transpose(1, 2)  # [A, n, I] @ [A, I, O]
    y = y if bias is None else y + bias[:, None]
    return y.reshape(*x.shape[:-1], out)


def _is_pointwise(conv: nn.Conv2d) -> bool:
    """A product of matrices, far faster than as many groups as there are agents."""
    return conv.kernel_size == (1, 1) and conv.groups == 1 and conv.padding == (0, 0)


def _convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Agents as groups of one convolution."""
    agents, out = weight.shape[:2]
    grouped = x.unflatten(0, (agents, -1)).transpose(0, 1).flatten(1, 2)  # [B, A * C, ...]
    each = None if bias is None else bias.flatten()
    conv = _CONV[type(layer)]
    y: Tensor = conv(
        grouped, weight.flatten(0, 1), each, layer.stride, layer.padding, layer.dilation, agents * layer.groups
    )
    own: Tensor = y.unflatten(1, (agents, out))
    return own.transpose(0, 1).flatten(0, 1)
