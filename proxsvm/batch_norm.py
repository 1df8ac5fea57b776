"""Batch norm whose jvp costs what its backward pass costs.

A multi-step solver differentiates twice, and torch's double backward of batch norm is a chain of a dozen passes over
the activations: about half of a conv net's jvp. It need not be. Within a channel the Jacobian of x ↦ x̂ is symmetric,

    Jᵀ = J = γσ⁻¹ (I − 11ᵀ/M − x̂x̂ᵀ/M),

so that J t is torch's own fused backward of batch norm, applied to t.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def cheap_jvp(model: nn.Module) -> nn.Module:
    """Let every batch norm of ``model`` be linearised cheaply, in place; the same parameters, state and numbers.

    For training with the solvers that take several steps. What is lost are second derivatives beyond the
    linearisation, such as a gradient penalty's: they raise an error.

    >>> model = cheap_jvp(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> isinstance(model[1], nn.BatchNorm2d), sorted(model.state_dict())[:2]
    (True, ['0.bias', '0.weight'])
    """
    for module in model.modules():
        if type(module) in _KINDS:
            module.__class__ = _KINDS[type(module)]
    return model


class _Cheap(nn.modules.batchnorm._BatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        plain = self.momentum is None or self.weight is None or x.dtype not in (torch.float32, torch.float64)
        if not self.training or plain:
            return super().forward(x)
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        options = self.running_mean, self.running_var, self.momentum, self.eps
        out: Tensor = _Normalise.apply(x, self.weight, self.bias, *options)  # type: ignore[no-untyped-call]
        return out


class _Cheap1d(_Cheap, nn.BatchNorm1d):
    pass


class _Cheap2d(_Cheap, nn.BatchNorm2d):
    pass


class _Cheap3d(_Cheap, nn.BatchNorm3d):
    pass


_KINDS: dict[type, type] = {nn.BatchNorm1d: _Cheap1d, nn.BatchNorm2d: _Cheap2d, nn.BatchNorm3d: _Cheap3d}


class _Normalise(torch.autograd.Function):
    """γ x̂ + β with the statistics of the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Any, var: Any, momentum: Any, eps: Any) -> Any:
        out, *statistics = torch.native_batch_norm(x, weight, bias, mean, var, True, momentum, eps)
        ctx.save_for_backward(x, weight, *statistics)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, *statistics = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph is being made: of g alone
            x, weight = _Held.apply(x), _Held.apply(weight)  # type: ignore[no-untyped-call]
        grads = _Transposed.apply(g, x, weight, *statistics, ctx.eps)  # type: ignore[no-untyped-call]
        return *grads, None, None, None, None


class _Transposed(torch.autograd.Function):
    """g ↦ (Jᵀg, ⟨x̂, g⟩, ⟨1, g⟩), linear in g; its own transpose is t ↦ J t₁ + x̂ t₂ + t₃."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Any:
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.eps = eps
        return _backward(g, x, weight, mean, invstd, eps, [True, True, True])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, tx: Tensor, tw: Tensor, tb: Tensor) -> Any:
        x, weight, mean, invstd = ctx.saved_tensors
        scale = tw * invstd
        channel = [1, -1] + [1] * (x.dim() - 2)
        affine = torch.addcmul((tb - mean * scale).reshape(channel), x, scale.reshape(channel))
        through = _backward(tx, x, weight, mean, invstd, ctx.eps, [True, False, False])[0]
        return through.add_(affine), None, None, None, None, None


class _Held(torch.autograd.Function):
    """The identity, where the linearisation holds a value fixed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        raise RuntimeError(
            "a batch norm after cheap_jvp(model) has no second derivatives beyond the linearisation that proxsvm's "
            "solvers ask for; use the model without cheap_jvp where you need them"
        )


def _backward(
    g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor, eps: float, mask: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
        g, x, weight, None, None, mean, invstd, True, eps, mask
    )
    return found
