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
        return _Layer.apply(self, x, self.weight, self.bias)  # type: ignore[no-untyped-call, no-any-return]

    def _run(self, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        running = self.running_mean, self.running_var
        return torch.native_batch_norm(x, weight, bias, *running, True, self.momentum or 0.0, self.eps)

    def _vjp(self, g: Tensor, mask: list[bool], x: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor) -> Any:
        options = None, None, mean, invstd, True, self.eps
        return torch.ops.aten.native_batch_norm_backward(g, x, weight, *options, mask)

    def _jvp(self, tx: Any, tw: Any, tb: Any, x: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor) -> Tensor:
        scale = 0 * weight if tw is None else tw * invstd
        shift = -mean * scale if tb is None else tb - mean * scale
        channel = [1, -1] + [1] * (x.dim() - 2)
        affine = torch.addcmul(shift.reshape(channel), x, scale.reshape(channel)).to(x.dtype)
        return affine if tx is None else affine.add_(self._vjp(tx, [True, False, False], x, weight, mean, invstd)[0])


class _BatchNorm1d(_BatchNorm, nn.BatchNorm1d): ...


class _BatchNorm2d(_BatchNorm, nn.BatchNorm2d): ...


class _BatchNorm3d(_BatchNorm, nn.BatchNorm3d): ...


class _Conv2d(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        plain = isinstance(self.padding, str) or self.padding_mode != "zeros" or x.dim() != 4
        if plain:
            return super()._conv_forward(x, weight, bias)  # type: ignore[no-any-return]
        kind = x.device.type
        if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:  # cast as autocast does, but before x is saved
            low = torch.get_autocast_dtype(kind)
            x, weight, bias = x.to(low), weight.to(low), None if bias is None else bias.to(low)
        return _Layer.apply(self, x, weight, bias)  # type: ignore[no-untyped-call, no-any-return]

    @property
    def _options(self) -> Any:
        return self.stride, self.padding, self.dilation, False, (0, 0), self.groups

    def _run(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        return (torch.convolution(x, weight, bias, *self._options),)

    def _vjp(self, g: Tensor, mask: list[bool], x: Tensor, weight: Tensor) -> Any:
        return torch.ops.aten.convolution_backward(g, x, weight, [weight.shape[0]], *self._options, mask)

    def _jvp(self, tx: Any, tw: Any, tb: Any, x: Tensor, weight: Tensor) -> Any:
        if tx is None:  # the weight, or the bias alone
            return self._run(x, torch.zeros_like(weight) if tw is None else tw, tb)[0]
        change = self._run(tx, weight, tb)[0]
        return change if tw is None else change.add_(self._run(x, tw, None)[0])


_KINDS = {kind.__bases__[-1]: kind for kind in (_BatchNorm1d, _BatchNorm2d, _BatchNorm3d, _Conv2d)}


class _Layer(torch.autograd.Function):
    """One of these, from input, weight and bias; ``_run`` also returns what its backward pass needs."""

    @staticmethod
    def forward(ctx: Any, layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        out, *statistics = layer._run(x, weight, bias)
        ctx.layer = layer
        ctx.save_for_backward(x, weight, *statistics)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, *statistics = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph is being made: of g alone
            x, weight = _Held.apply(x), _Held.apply(weight)  # type: ignore[no-untyped-call]
        mask = list(ctx.needs_input_grad[1:])
        return None, *_Backward.apply(ctx.layer, g, mask, x, weight, *statistics)  # type: ignore[no-untyped-call]


class _Backward(torch.autograd.Function):
    """Its backward pass, linear in g; the transpose of that is the layer's jvp."""

    @staticmethod
    def forward(ctx: Any, layer: Any, g: Tensor, mask: list[bool], *saved: Tensor) -> Any:
        ctx.layer = layer
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        return layer._vjp(g, mask, *saved)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, *t: Tensor | None) -> Any:
        return None, ctx.layer._jvp(*t, *ctx.saved_tensors), None, *[None] * len(ctx.saved_tensors)


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
