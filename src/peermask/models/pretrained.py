"""Pretrained weights: read without trust, put into a module, and its batch norms folded where they can be."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from peermask.errors import ModelError
from peermask.models.layout import ChannelAffine

NESTED = ("state_dict", "model_state_dict", "model")  # under which training scripts put a state dict
_COUNTER = "num_batches_tracked"
_BatchNorm = nn.modules.batchnorm._BatchNorm


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors file, or from a state dict that holds nothing but tensors."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)  # which builds nothing else
    except FileNotFoundError:
        raise ModelError(f"frozen.from = {str(path)!r}: there is no such file") from None
    except OSError as error:
        raise ModelError(f"frozen.from = {str(path)!r} cannot be read: {error.strerror or error}") from None
    except Exception:  # of safetensors, zip files and restricted unpickling, each their own
        raise ModelError(
            f"frozen.from = {str(path)!r} is damaged, or neither .safetensors nor a state dict of tensors alone"
        ) from None
    if isinstance(tensors, Mapping):
        tensors = next((tensors[key] for key in NESTED if isinstance(tensors.get(key), Mapping)), tensors)
    if (
        not isinstance(tensors, Mapping)
        or not tensors
        or not all(isinstance(value, Tensor) for value in tensors.values())
    ):
        raise ModelError(f"frozen.from = {str(path)!r} holds a {type(tensors).__name__}, not tensors by name")
    return {str(name): tensor for name, tensor in tensors.items()}


def put_weights(module: nn.Module, weights: Mapping[str, Tensor], where: str, drawn: Sequence[str] = ()) -> None:
    """Load them, every name and shape as the module has them; the first that differs is named.

    Those whose names match a pattern of `drawn` are left out.
    """

    def counts(name: str) -> bool:
        return not name.endswith(_COUNTER) and not any(fnmatchcase(name, pattern) for pattern in drawn)

    wanted = {name: tensor for name, tensor in module.state_dict().items() if counts(name)}
    for name, tensor in wanted.items():
        if name not in weights:
            near = next((other for other in weights if other not in wanted), None)
            there = f"; where it has {near!r} of {_by(weights[near])}" if near is not None else ""
            raise ModelError(f"{where} has no {name!r} of {_by(tensor)}, which the model has{there}")
        if weights[name].shape != tensor.shape:
            layer = name.rpartition(".")[0]
            raise ModelError(
                f"{where} has {name!r} of {_by(weights[name])}, the model of {_by(tensor)}; "
                f"frozen.drawn = ['{layer}.*'] draws that layer from the seed"
            )
        if not weights[name].is_floating_point() and tensor.is_floating_point():
            raise ModelError(f"{where} has {name!r} as {weights[name].dtype}; floats are needed")
    extra = next((name for name in weights if name not in wanted and counts(name)), None)
    if extra is not None:
        raise ModelError(f"{where} has {extra!r} of {_by(weights[extra])}, which the model does not have")
    module.load_state_dict({name: weights[name].to(tensor.dtype) for name, tensor in wanted.items()}, strict=False)


def fold_batch_norms(module: nn.Module) -> dict[str, int]:
    """Make fixed numbers of batch norms, in place: how many were folded into the layer before, and how many were not.

    One that follows a convolution or linear layer, and nothing else reads that layer, becomes part of its weights; any
    other becomes a factor and a summand for each channel.
    """
    norms = {name: child for name, child in module.named_modules() if isinstance(child, _BatchNorm)}
    if not norms:
        return {"folded": 0, "alone": 0}
    for name, norm in norms.items():
        if norm.running_mean is None or norm.running_var is None:
            raise ModelError(
                f"model layer {name!r} is a batch norm without running averages, which cannot be converted"
            )
    module.eval()
    with torch.no_grad():
        pairs = _pairs(module, norms)
        for name, norm in norms.items():
            before = pairs.get(name)
            if before is not None:
                layer = module.get_submodule(before)
                fused = (
                    fuse_linear_bn_eval(layer, norm) if isinstance(layer, nn.Linear) else fuse_conv_bn_eval(layer, norm)  # type: ignore[type-var]
                )
                _put(module, before, fused)
                _put(module, name, nn.Identity())
            else:
                _put(module, name, _affine(norm))
    return {"folded": len(pairs), "alone": len(norms) - len(pairs)}


def without_batch_norm(module: nn.Module) -> nn.Module:
    """Copy a module, with group norms in place of its batch norms: masks over random weights can use those.

    A batch norm has running averages, which all agents would share; a group norm has none. It has eight groups, or
    fewer so that each has four channels or more, and the weight and bias of the batch norm. For trained weights use
    `frozen.from = "module"` instead, which keeps the averages as fixed numbers.

    Args:
        module: Any module; it is not changed.

    Returns:
        The copy.

    Raises:
        ModelError: It is not a module, or a parameter has no shape yet.

    Examples:
        >>> import peermask
        >>> from torch import nn
        >>> peermask.without_batch_norm(nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16)))[1].num_groups
        4
    """
    if not isinstance(module, nn.Module):
        raise ModelError(f"module has type {type(module).__name__}; give a torch.nn.Module")
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ModelError(f"model parameter {name!r} has no shape yet; call the module once before passing it")
    module = copy.deepcopy(module)
    for name, norm in list(module.named_modules()):
        if isinstance(norm, _BatchNorm):
            channels = norm.num_features
            groups = next(g for g in (8, 4, 2, 1) if g == 1 or (channels % g == 0 and channels >= 4 * g))
            group_norm = nn.GroupNorm(groups, channels, norm.eps, norm.affine)
            group_norm.load_state_dict(dict(norm.named_parameters()))
            if not name:
                return group_norm
            _put(module, name, group_norm)
    return module


def _affine(norm: _BatchNorm) -> ChannelAffine:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -norm.running_mean * scale
    return ChannelAffine(scale, shift if norm.bias is None else shift + norm.bias)


def _pairs(module: nn.Module, norms: Mapping[str, nn.Module]) -> dict[str, str]:
    """Norm to the layer before it, if nothing else uses that layer's output; none if the module cannot be traced."""
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # a module's own code may raise anything if it is not given tensors
        return {}
    calls = [node for node in graph.nodes if node.op == "call_module"]
    used = [str(node.target) for node in calls]
    pairs = {}
    for node in calls:
        before = node.args[0] if node.args else None
        if str(node.target) not in norms or not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        name, layer = str(before.target), module.get_submodule(str(before.target))
        plain = type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
        if plain and len(before.users) == 1 and used.count(name) == used.count(str(node.target)) == 1:
            pairs[str(node.target)] = name
    return pairs


def _put(module: nn.Module, name: str, child: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, child)


def _by(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"
