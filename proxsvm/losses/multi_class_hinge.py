"""The multi-class hinge of Crammer and Singer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import inner, known, one_hot
from proxsvm.losses._classes import ClassLoss, as_cost
from proxsvm.losses.base import Atom, PiecewiseLinearLoss
from proxsvm.losses.hulls import Simplex, rival


class MultiClassHinge(ClassLoss, PiecewiseLinearLoss):
    """ℓ(u; y) = max_k  u_k − u_y + Δ(k, y).

    Atoms: s = e_k − e_y, c = Δ(k, y). Scores ``[n, K]`` or ``[n, K, d1, ...]``, target ``[n]`` or ``[n, d1, ...]``.

    Args:
        cost: Δ as a ``[K, K]`` matrix indexed (predicted k, true y), finite and non-negative with a zero diagonal; 0/1
            if None.
        smooth: train with the direction of the cross-entropy, s = softmax(u) − e_y, for every sample where that
            can raise the dual (⟨s, u⟩ + c > 0), and with the hinge's own atom for the others (appendix A.6).
        options: ``weight``, ``ignore_index`` and ``reduction``, as in ``torch.nn.CrossEntropyLoss``.

    >>> MultiClassHinge()(torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0]))
    tensor(0.5000)
    """

    options = ("cost", *ClassLoss.options)
    cost: Tensor | None

    def __init__(self, cost: Tensor | None = None, *, smooth: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("cost", None if cost is None else as_cost(cost))
        self.smooth = smooth

    def _costs(self, scores: Tensor, y: Tensor) -> Tensor | None:
        """Δ(k, y_i) for each sample and class, ``[n, K]``; None for 1 at all k ≠ y."""
        if self.cost is None:
            return None
        if len(self.cost) != scores.shape[1]:
            raise ValueError(f"cost is for {len(self.cost)} classes, but the scores have {scores.shape[1]}")
        return self.cost.to(scores).T[y]

    def values(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Atom | None]:
        """In a handful of operations; the hinge's are differentiated by autograd."""
        y = self.classes(scores, target)
        if not self.smooth:
            return rival(scores, y, self._costs(scores, y))[1].relu(), None
        u = self.expand(scores, target)
        with torch.no_grad():
            atom, soft = self._direction(u.detach(), target)
        if not torch.compiler.is_compiling():
            return _Softmax.apply(u, atom.value, atom.s, soft), atom  # type: ignore[no-untyped-call]
        hinge, entropy = rival(u, y, self._costs(u, y))[1].relu(), F.cross_entropy(u, y, reduction="none")
        return torch.where(soft, atom.value_at(u) + (entropy - entropy.detach()), hinge), atom

    def smoothed(self, scores: Tensor, target: Tensor) -> Atom:
        """s = softmax(u) − e_y with the expected Δ: the gradient of the cross-entropy."""
        y = self.classes(scores, target)
        at, cost = y[:, None], self._costs(scores, y)
        margins = scores - scores.gather(1, at)
        p = margins.softmax(1)
        delta = 1 - p.gather(1, at).squeeze(1) if cost is None else inner(p, cost)
        value = margins.mul_(p).sum(1) + delta  # ⟨s, u⟩ + c, which does not cancel here
        return Atom(p.scatter_add_(1, at, -torch.ones_like(p[:, :1])), delta, value)

    def direction(self, scores: Tensor, target: Tensor) -> Atom:
        """As for every loss."""
        return self._direction(scores, target)[0] if self.smooth else self.oracle(scores, target)

    def _direction(self, scores: Tensor, target: Tensor) -> tuple[Atom, Tensor]:
        """The atom of a training step, and where it is the smoothed one, ``[n]``; the others are searched alone."""
        atom: Any = self.smoothed(scores, target)
        soft = atom.value > 0
        every = known(soft.all())
        if every is None:  # which ones cannot be known without synchronising
            atom = atom.where(soft, self.oracle(scores, target))
        elif not every:
            rows = (~soft).nonzero().squeeze(1)
            exact: Any = self.oracle(scores[rows], target[rows])
            atom.s[rows], atom.offset[rows], atom.value[rows] = exact.s, exact.offset, exact.value
        return atom, soft

    def hull(self, scores: Tensor, target: Tensor) -> Simplex:
        """The simplex of the classes."""
        y = self.classes(scores, target)
        cost = self._costs(scores, y)
        return Simplex(y, 1 - one_hot(scores, y, scores.shape[1]) if cost is None else cost)


class _Softmax(torch.autograd.Function):
    """A value with the gradient s, which moves with softmax(u) where it is differentiated again and ``soft``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, value: Tensor, s: Tensor, soft: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        u, _, s, soft = inputs
        ctx.save_for_backward(u, s, soft)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        u, s, soft = ctx.saved_tensors
        if torch.is_grad_enabled():
            p = u.softmax(1)
            s = s + soft[:, None] * (p - p.detach())
        return g[:, None] * s, None, None, None
