"""A loss is one oracle: every convex loss with ℓ ≥ 0 is the largest of its tangent planes.

ℓ(u; y) = max over (s, c) in S(y) of ⟨s, u⟩ + c
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from proxsvm._scores import Scores, dense, detached, like, parts, per_sample, require, without_autocast
from proxsvm.losses.hulls import Atom, Hull

__all__ = ["Atom", "ConvexLoss", "Origin", "Reduction", "Scores", "detached", "like", "parts", "without_autocast"]

Reduction: TypeAlias = Literal["mean", "sum", "none"]


class Origin:
    """What a loss value was computed from; the value carries it, so that a solver can build its problem.

    Scores and target are prepared; ``p`` is the weight of each sample, ``[n]``, or one number for all, or None for the
    loss's own; ``atom`` is the one that was differentiated, so that it is not searched again.
    """

    __slots__ = ("_p", "_scores", "atom", "loss", "prepared", "target", "versions")

    def __init__(
        self, loss: ConvexLoss, scores: Scores, target: Any, p: Tensor | float | None = None, atom: Atom | None = None
    ) -> None:
        self.loss, self.prepared, self.target, self._p, self.atom = loss, scores, target, p, atom
        self._scores: Scores | None = None
        self.versions = self._versions()

    def _versions(self) -> tuple[int, ...]:
        if torch.compiler.is_compiling():
            return ()
        seen = (*parts(self.prepared), *parts(self.target))
        return tuple([x._version if isinstance(x, Tensor) and not x.is_inference() else 0 for x in seen])

    def check(self) -> None:
        """Raise RuntimeError if the scores or the target were changed in place since the criterion saw them."""
        if self.versions and self.versions != self._versions():
            raise RuntimeError(
                "the scores or the target were changed in place after the loss was computed from them, so the step "
                "would not be that of the loss: change a copy, scores.clone()"
            )

    @property
    def scores(self) -> Scores:
        """The scores u, with one entry per sample."""
        if self._scores is None:
            with torch.enable_grad():  # a step asks without
                self._scores = self.loss.expand(self.prepared, self.target)
        return self._scores

    def lower_bounds(self) -> Tensor | None:
        """f_i ≤ ℓ(u; y_i) for all u, ``[n]``; None where the loss declares no bound but 0."""
        bound = self.loss.lower_bound(detached(self.prepared), self.target)
        name = type(self.loss).__name__
        return None if bound is None else per_sample(bound, self.prepared, f"{name}.lower_bound returned")

    @property
    def coefficients(self) -> Tensor:
        """The weight p_i with which each sample entered the value, ``[n]``."""
        if self._p is None:
            self._p = self.loss.coefficients(self.prepared, self.target, None)
        if isinstance(self._p, Tensor):
            return self._p
        u = parts(self.prepared)[0].detach()
        return u.new_full(u.shape[:1], self._p)


class ConvexLoss(nn.Module):
    """Base of all losses: any convex ℓ ≥ 0. A subclass defines :meth:`oracle`, or a :meth:`hull` that has one.

    Value, gradient, dual and step-size follow. The value is Σ_i p_i ℓ(u_i; y_i) with p_i = 1/n for ``reduction="mean"``
    (with sample weights the weighted mean, p_i = ω_i / Σω), p_i = 1 (or ω_i) for ``"sum"``; ``"none"`` returns the
    ``[n]`` values p_i ℓ(u_i; y_i).

    >>> class Hinge(ConvexLoss):
    ...     '''max(0, 1 - y·u) for y in {-1, 1}.'''
    ...     def oracle(self, scores, target):
    ...         active = (target * scores < 1).to(scores)
    ...         return Atom(-target * active, active)
    >>> Hinge()(torch.tensor([0.5, 3.0]), torch.tensor([-1.0, 1.0]))
    tensor(0.7500)
    """

    exact: bool = True
    """Whether :meth:`oracle` always finds the best atom; if not, values and gaps are lower bounds, not certificates."""
    smooth: bool = False  # a hinge that can be smoothed sets it, and defines `smoothed`
    options: tuple[str, ...] = ()  # the attributes that the representation shows

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass with atoms of its own has their values, unless it defines :meth:`values`, too."""
        super().__init_subclass__(**options)
        if "values" not in vars(cls) and not {"oracle", "smoothed", "direction"}.isdisjoint(vars(cls)):
            cls.values = ConvexLoss.values  # type: ignore[method-assign]

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction is {reduction!r}; expected 'mean', 'sum' or 'none'")
        self.reduction = reduction

    # What a loss defines.

    def oracle(self, scores: Any, target: Any) -> Atom:
        """The best atom at ``scores``: argmax over (s, c) in S(y) of ⟨s, u⟩ + c, for each sample."""
        hull = self.hull(scores, target)
        atom = None if hull is None else hull.best(scores)
        if atom is None:
            raise NotImplementedError(f"{type(self).__name__} must define oracle(scores, target) -> Atom")
        return atom

    def hull(self, scores: Any, target: Any) -> Hull | None:
        """The description of S(y), where the loss has one: ``ExactQP`` solves over it, fast solvers use its form."""
        return None

    def smoothed(self, scores: Any, target: Any) -> Atom:
        """A smooth feasible atom (appendix A.6), used in training where ``self.smooth`` is set."""
        raise NotImplementedError(f"{type(self).__name__} has no smoothed atom")

    def lower_bound(self, scores: Any, target: Any) -> Tensor | None:
        """f ≤ ℓ(u; y) for all u, ``[n]``, and so (0, f) is a feasible start of the dual; None for 0."""
        return None

    def weights(self, scores: Any, target: Any) -> tuple[Tensor, Tensor] | None:
        """How much each sample counts, ``[n]``, and its share of the mean's divisor, ``[n]``; None for 1 and 1."""
        return None

    def prepare(self, scores: Any, target: Any) -> tuple[Any, Any]:
        """Check the input and convert it to standard form: half-precision scores become float32."""
        return dense(type(self).__name__, scores), target

    def expand(self, scores: Any, target: Any) -> Any:
        """Prepared scores as the solvers take them: finite, and repeated where samples share them, as transitions."""
        return scores

    # What follows from that.

    def direction(self, scores: Any, target: Any) -> Atom:
        """The atom of a training step: the oracle's, or the smoothed one where it can help (⟨s, b⟩ > 0)."""
        exact = self.oracle(scores, target)
        if not self.smooth:
            return exact
        soft = self.smoothed(scores, target)
        return soft.where(soft.value_at(scores) > 0, exact)

    def values(self, scores: Any, target: Any) -> tuple[Tensor, Atom | None]:
        """ℓ(u_i; y_i) of prepared scores, ``[n]``, differentiable, and the atom whose s is the gradient, if any."""
        scores = self.expand(scores, target)
        with torch.no_grad():
            atom = self.direction(detached(scores), target)
        self._check(atom, scores)
        return atom.at(scores), atom

    def coefficients(self, scores: Any, target: Any, sample_weight: Tensor | None) -> Tensor | float:
        """The weight p_i with which each sample enters the value: ``[n]``, or a number if it is the same for all."""
        first, counts = parts(scores)[0].detach(), self.weights(scores, target)
        if sample_weight is None and counts is None:
            return 1 / len(first) if self.reduction == "mean" else 1.0
        weight, mass = (first.new_ones(len(first)),) * 2 if counts is None else counts
        if sample_weight is not None:
            given = self._sample_weight(sample_weight, weight)
            weight, mass = weight * given, mass * given
        return weight / mass.sum() if self.reduction == "mean" else weight

    def _sample_weight(self, given: Any, like: Tensor) -> Tensor:
        if not isinstance(given, Tensor):
            raise TypeError(f"sample_weight is a {type(given).__name__}; expected a tensor: torch.as_tensor(...)")
        if given.shape != like.shape:
            expected = f"one weight per sample, {tuple(like.shape)}"
            raise ValueError(f"sample_weight has shape {tuple(given.shape)}; expected {expected}")
        weight = given.to(like)
        total = weight.sum()
        ok = (weight >= 0) & (total > 0) & (total < torch.inf)
        require(ok, "sample_weight must be finite, non-negative and not all zero, or the loss would not be convex")
        return weight

    def forward(self, scores: Any, target: Any, sample_weight: Tensor | None = None) -> Tensor:
        """Σ_i p_i ℓ(u_i; y_i), with the :class:`Origin` from which a solver makes its problem."""
        u, y = self.prepare(scores, target)
        return self._value(u, y, self.coefficients(u, y, sample_weight))

    def _value(self, u: Any, y: Any, p: Tensor | float) -> Tensor:
        """The same, of prepared scores and the weight of each sample."""
        with without_autocast(parts(u)[0]):
            each, atom = self.values(u, y)
            if self.reduction == "none":
                return p * each
            value = torch.dot(p, each) if isinstance(p, Tensor) else each.mean() if p != 1 else each.sum()
        if value.requires_grad:
            value.origin = Origin(self, u, y, p, atom)  # type: ignore[attr-defined]
        return value

    def _check(self, atom: Any, scores: Scores) -> None:
        name = f"{type(self).__name__}.oracle returned"
        if not isinstance(atom, Atom):
            raise TypeError(f"{name} a {type(atom).__name__}; expected an Atom: return Atom(s, offset)")
        if not all(isinstance(x, Tensor) for x in parts(atom.s)):
            raise TypeError(f"{name} s of type {type(atom.s).__name__}; expected a tensor for each of the scores")
        given, expected = ([tuple(x.shape) for x in parts(u)] for u in (atom.s, scores))
        if given != expected:
            raise ValueError(f"{name} s of shape {given}; expected that of the scores, {expected}")
        for x, u in zip(parts(atom.s), parts(scores), strict=True):
            if x.dtype != u.dtype:
                raise TypeError(f"{name} s of {x.dtype}; expected that of the scores, {u.dtype}: s.to(scores)")
        per_sample(atom.offset, scores, f"{name} an offset of")
        per_sample(atom.offset if atom.value is None else atom.value, scores, f"{name} a value of")

    def extra_repr(self) -> str:
        """The options, which differ between losses; a tensor by its shape."""
        values = {name: getattr(self, name) for name in (*self.options, "reduction")}
        shown = {name: tuple(x.shape) if isinstance(x, Tensor) else x for name, x in values.items() if x is not None}
        return ", ".join(f"{name}={x!r}" for name, x in shown.items()) + (", smooth=True" if self.smooth else "")


class PiecewiseLinearLoss(ConvexLoss):
    """A loss with finitely many atoms, whose hull is a polytope: the hinges and their relatives."""
