"""Convolutions and batch norms whose jvp costs as much as their backward pass.

A multi-step solver differentiates twice. Torch's double backward of a convolution then runs twice the convolutions
that a jvp needs, because it also differentiates with respect to input and weight; that of batch norm is a dozen
passes over the activations. A linearisation needs less: the transpose of the backward pass,

    convolution:    (t_x, t_w, t_b)  ↦  t_x ∗ w + x ∗ t_w + t_b
    batch norm:     (t_x, t_w, t_b)  ↦  J t_x + x̂ t_w + t_b

where within a channel J = γσ⁻¹ (I − 11ᵀ/M − x̂x̂ᵀ/M) is symmetric: J t is torch's own fused backward, applied to t.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_BACKWARD: Any = torch.ops.aten.native_batch_norm_backward


def cheap_jvp(model: nn.Module) -> nn.Module:
    """Make the convolutions and batch norms of ``model`` cheap to linearise, in place; the numbers stay the same.

    For training with multi-step solvers. What is lost are second derivatives beyond the
    linearisation, such as those of a gradient penalty: they raise an error.

    >>> model = cheap_jvp(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> isinstance(model[1], nn.BatchNorm2d), sorted(model.state_dict())[:2]
    (True, ['0.bias', '0.weight'])
    """
    for module in model.modules():
        if type(module) in _KINDS:
            module.__class__ = _KINDS[type(module)]
    return model


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        plain = self.momentum is None or self.weight is None or self.weight.dtype not in (torch.float32, torch.float64)
        few = x.numel() <= self.num_features  # at most one value per channel has no variance: torch decides
        if not self.training or plain or few:
            return super().forward(x)
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        options = self.running_mean, self.running_var, self.momentum, self.eps
        return _Normalise.apply(x, self.weight, self.bias, *options)  # type: ignore[no-untyped-call, no-any-return]


class _BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    pass


class _BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    pass


class _BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    pass


class _Conv2d(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        plain = isinstance(self.padding, str) or self.padding_mode != "zeros" or x.dim() != 4
        if plain:
            return super()._conv_forward(x, weight, bias)  # type: ignore[no-any-return]
        kind = x.device.type
        if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:  # cast as autocast does, but before x is saved
            low = torch.get_autocast_dtype(kind)
            x, weight, bias = x.to(low), weight.to(low), None if bias is None else bias.to(low)
        options = self.stride, self.padding, self.dilation, False, (0, 0), self.groups
        return _Convolve.apply(x, weight, bias, options)  # type: ignore[no-untyped-call, no-any-return]


_KINDS: dict[type, type] = {
    nn.BatchNorm1d: _BatchNorm1d,
    nn.BatchNorm2d: _BatchNorm2d,
    nn.BatchNorm3d: _BatchNorm3d,
    nn.Conv2d: _Conv2d,
}


class _Convolve(torch.autograd.Function):
    """x ∗ w + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: Any) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.options = options
        return torch.convolution(x, weight, bias, *options)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph is being made: of g alone
            x, weight = _Held.apply(x), _Held.apply(weight)  # type: ignore[no-untyped-call]
        found = _ConvolveBack.apply(g, x, weight, ctx.options, list(ctx.needs_input_grad[:3]))  # type: ignore[no-untyped-call]
        return *found, None


class _ConvolveBack(torch.autograd.Function):
    """The backward pass of x ∗ w + b, linear in g."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, options: Any, mask: list[bool]) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return torch.ops.aten.convolution_backward(g, x, weight, [weight.shape[0]], *options, mask)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, tx: Tensor | None, tw: Tensor | None, tb: Tensor | None) -> Any:
        x, weight = ctx.saved_tensors
        if tx is None:  # the weight, or the bias alone
            kernel = torch.zeros_like(weight) if tw is None else tw
            return torch.convolution(x, kernel, tb, *ctx.options), None, None, None, None
        change = torch.convolution(tx, weight, tb, *ctx.options)
        if tw is not None:
            change += torch.convolution(x, tw, None, *ctx.options)
        return change, None, None, None, None


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
        grads = _NormaliseBack.apply(g, x, weight, *statistics, ctx.eps)  # type: ignore[no-untyped-call]
        return *grads, None, None, None, None


class _NormaliseBack(torch.autograd.Function):
    """g ↦ (Jᵀg, ⟨x̂, g⟩, ⟨1, g⟩), linear in g; its own transpose is t ↦ J t₁ + x̂ t₂ + t₃."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Any:
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.eps = eps
        return _BACKWARD(g, x, weight, None, None, mean, invstd, True, eps, [True, True, True])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, tx: Tensor, tw: Tensor, tb: Tensor) -> Any:
        x, weight, mean, invstd = ctx.saved_tensors
        scale = tw * invstd
        channel = [1, -1] + [1] * (x.dim() - 2)
        affine = torch.addcmul((tb - mean * scale).reshape(channel), x, scale.reshape(channel))
        mask = [True, False, False]
        through = _BACKWARD(tx, x, weight, None, None, mean, invstd, True, ctx.eps, mask)[0]
        return through.add_(affine), None, None, None, None, None


class _Held(torch.autograd.Function):
    """The identity, where the linearisation keeps a value fixed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        raise RuntimeError(
            "a layer after cheap_jvp(model) has no second derivatives beyond the linearisation that proxsvm's solvers "
            "need; use the model without cheap_jvp where you need more"
        )
