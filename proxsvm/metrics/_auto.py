"""Automatic η: the distance covered so far over the gradients so far."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from proxsvm._numbers import Number, on_host, to_float

FIRST = 1e-3  # the first r̄, as a fraction of ‖w_0‖


class DistanceOverGradients:
    """η_t = r̄_t / √G_t in the metric M of each step, with

        r̄_t = max(1e-3 ‖w_0‖_M, max_k ‖w_k − w_0‖_M),        G_t = Σ_k ⟨g_k, M_k⁻¹ g_k⟩.

    ``far`` is r̄ (negative before the first step) and ``squares`` is G: 0-dim tensors that the optimizer keeps.

    Reference: Ivgi, Hinder and Carmon, DoG is SGD's Best Friend, ICML 2023; here in a metric, with γ below it.

    >>> auto = DistanceOverGradients(far=torch.tensor(-1.0), squares=torch.tensor(0.0))
    >>> auto.eta(start=100.0, distance=0.0, squares=4.0)               # 1e-3 · 10 / 2
    0.005
    >>> auto.commit(skip=False)
    >>> auto.far, auto.squares
    (tensor(0.0100), tensor(4.))
    """

    def __init__(self, far: Tensor, squares: Tensor) -> None:
        self.far, self.squares = far, squares
        self._next: tuple[Number, Number] = far, squares

    def eta(self, start: Number, distance: Number, squares: Number) -> Number:
        """η of this step, from ‖w_0‖², ‖w − w_0‖² and ⟨g, M⁻¹g⟩."""
        if not isinstance(squares, Tensor) and on_host(self.far):
            far, sums = to_float(self.far), to_float(self.squares) + squares
            begin = FIRST * (math.sqrt(to_float(start)) or 1.0) if far < 0 else far
            far = max(begin, math.sqrt(to_float(distance)))
            self._next = far, sums
            return far / math.sqrt(sums) if sums > 0 else sums
        like = self.far
        s, d, g = (torch.as_tensor(x, device=like.device).to(like.dtype) for x in (start, distance, squares))
        one = torch.ones_like(like)
        begin_ = torch.where(like < 0, FIRST * torch.where(s > 0, s.sqrt(), one), like)
        far_, sums_ = torch.maximum(begin_, d.sqrt()), self.squares + g
        self._next = far_, sums_
        return torch.where(sums_ > 0, far_ / sums_.sqrt(), sums_)

    def commit(self, skip: bool | Tensor) -> None:
        """The step was taken, unless ``skip`` holds."""
        far, squares = self._next
        if isinstance(far, Tensor) and isinstance(squares, Tensor):
            stay = torch.as_tensor(skip, device=self.far.device)
            new = [torch.where(stay, self.far, far), torch.where(stay, self.squares, squares)]
            torch._foreach_copy_([self.far, self.squares], new)  # not far.copy_(): see geometry.count()
        elif not to_float(skip):
            self.far.fill_(far)
            self.squares.fill_(squares)
