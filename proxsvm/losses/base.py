"""A loss is one oracle: every convex loss with ℓ ≥ 0 is the largest of its tangent planes.

ℓ(u; y) = max over (s, c) in S(y) of ⟨s, u⟩ + c
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from proxsvm._kernels.tensors import assert_async, in_transform, traced, widened
from proxsvm.losses._rows import in_slices, relative, row_dots, tangent

if TYPE_CHECKING:
    from proxsvm.losses._hulls.base import Hull

Scores: TypeAlias = "Tensor | tuple[Tensor, ...]"
Reduction: TypeAlias = Literal["mean", "sum", "none"]
T = TypeVar("T")


def parts(scores: Scores) -> tuple[Tensor, ...]:
    """The tensors of ``scores``, which is one tensor or a tuple of them."""
    return scores if isinstance(scores, tuple) else (scores,)


def like(scores: Scores, tensors: tuple[Tensor, ...]) -> Scores:
    """``tensors`` in the structure of ``scores``: the inverse of :func:`parts`."""
    return tensors if isinstance(scores, tuple) else tensors[0]


def detached(scores: T) -> T:
    """``scores`` without their graph, in the same structure.

    >>> detached((torch.ones(1, requires_grad=True),))
    (tensor([1.]),)
    """
    given: Any = scores
    found: Any = like(given, tuple(u.detach() for u in parts(given)))
    return cast(T, found)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which operations keep the precision of ``x``: a loss value is a sum of many terms."""
    kind = x.device.type
    enabled = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if enabled else nullcontext()


@dataclass(frozen=True)
class Atom:
    """A piece of the loss for each sample: the affine function u ↦ ⟨s, u⟩ + c.

    ``s`` has the structure and shapes of the scores (first dimension: the n samples), ``offset`` is c, ``[n]``.
    ``value``, ``[n]``, is ⟨s, u⟩ + c at the scores where the oracle found the atom, if it was computed directly: at
    large scores ⟨s, u⟩ and c cancel.

    >>> atom = Atom(s=torch.tensor([[1.0, -1.0]]), offset=torch.tensor([1.0]))
    >>> atom.b(torch.tensor([[0.5, 2.0]]))
    tensor([-0.5000])
    """

    s: Scores
    offset: Tensor
    value: Tensor | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Any]:
        """s, c = atom."""
        return iter((self.s, self.offset))

    def b(self, scores: Scores) -> Tensor:
        """The atom's value at each sample, b = ⟨s, u⟩ + c, ``[n]``."""
        n = len(self.offset)
        value = self.offset
        for s, u in zip(parts(self.s), parts(scores), strict=True):
            value = value + row_dots(s.reshape(n, -1), u.reshape(n, -1))
        return value

    def value_at(self, scores: Scores) -> Tensor:
        """b at the scores where the oracle found this atom, ``[n]``."""
        return self.b(scores) if self.value is None else self.value

    def about(self, scores: Scores, reference: Scores) -> Atom:
        """With its value at ``scores`` as ⟨s, u − reference⟩ + c, which does not cancel; ⟨s, reference⟩ must be 0."""
        value = self.offset
        for s, u, r in zip(parts(self.s), parts(scores), parts(reference), strict=True):
            value = value + in_slices(lambda *x: row_dots(x[0].flatten(1), relative(*x[1:]).flatten(1)), s, u, r)
        return replace(self, value=value)

    def at(self, scores: Scores) -> Tensor:
        """b as a function of the scores where the oracle found this atom; its gradient is s."""
        if self.value is not None and not traced():
            return tangent(self.value, parts(self.s), parts(scores))
        b = self.b(scores)
        return b if self.value is None else self.value + (b - b.detach())  # the same, for compilers

    def where(self, chosen: Tensor, other: Atom) -> Atom:
        """This atom for the samples that are ``chosen`` (bool, ``[n]``), ``other`` for the rest."""

        def mix(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(chosen.reshape(-1, *[1] * (a.dim() - 1)), a, b)

        mixed = tuple(mix(a, b) for a, b in zip(parts(self.s), parts(other.s), strict=True))
        value = None if self.value is None or other.value is None else mix(self.value, other.value)
        return Atom(like(self.s, mixed), mix(self.offset, other.offset), value)


@dataclass(slots=True, eq=False)
class Origin:
    """What a loss value was computed from; the value carries it, so that a solver can build its problem."""

    loss: ConvexLoss
    scores: Scores
    target: Any
    p: Tensor | float | Callable[[], Tensor | float]  # one per sample, or one for all; computed when needed
    atom: Atom | None = None  # the one that was differentiated, so that it is not searched again
    versions: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.versions = self._versions()

    def _versions(self) -> tuple[int, ...]:
        if torch.compiler.is_compiling():
            return ()
        seen = (*parts(self.scores), *parts(self.target))
        return tuple([0 if not isinstance(x, Tensor) or x.is_inference() else x._version for x in seen])

    def check(self) -> None:
        """Raise RuntimeError if the scores or the target were changed in place since the criterion saw them.

        >>> origin = Origin(ConvexLoss(), torch.zeros(2), None, 0.5)
        >>> _ = origin.scores.add_(1)
        >>> origin.check()
        Traceback (most recent call last):
        RuntimeError: the scores or the target were changed in place after the loss was computed from them, ...
        """
        if self.versions and self.versions != self._versions():
            raise RuntimeError(
                "the scores or the target were changed in place after the loss was computed from them, so the step "
                "would not be that of the loss: change a copy, scores.clone()"
            )

    def lower_bounds(self) -> Tensor | None:
        """f_i ≤ ℓ(u; y_i) for all u, ``[n]``; None where the loss declares no bound but 0."""
        if type(self.loss).lower_bound is ConvexLoss.lower_bound:
            return None
        return self.loss.lower_bound(detached(self.scores), self.target)

    @property
    def coefficients(self) -> Tensor:
        """The weight p_i with which each sample entered the value, ``[n]``."""
        p = self.p() if callable(self.p) else self.p
        if isinstance(p, Tensor):
            return p
        u = parts(self.scores)[0].detach()
        return u.new_full(u.shape[:1], p)


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
        """Check the input and convert it to standard form; raises before anything has changed.

        Half-precision scores become float32, because a value is a sum of many terms.
        """
        first = parts(scores)[0]
        if not isinstance(first, Tensor) or first.dim() == 0 or first.numel() == 0:
            given = f"shape {tuple(first.shape)}" if isinstance(first, Tensor) else f"a {type(first).__name__}"
            raise ValueError(
                f"{type(self).__name__} got scores of {given}; expected a tensor with at least one sample in its "
                "first dimension (skip empty batches)"
            )
        for u in parts(scores):
            if not u.is_floating_point() or u.dtype.itemsize < 2 or u.layout is not torch.strided:
                raise TypeError(
                    f"{type(self).__name__} got scores of {u.dtype} and {u.layout}; expected dense floating-point "
                    "numbers of at least 16 bits: scores.float(), or scores.to_dense()"
                )
        return like(scores, tuple(widened(u) for u in parts(scores))), target

    # What follows from that.

    def direction(self, scores: Any, target: Any) -> Atom:
        """The atom of a training step: the oracle's, or the smoothed one where it can help (⟨s, b⟩ > 0)."""
        exact = self.oracle(scores, target)
        if not self.smooth:
            return exact
        soft = self.smoothed(scores, target)
        return soft.where(soft.value_at(scores) > 0, exact)

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
            raise TypeError(
                f"sample_weight is a {type(given).__name__}; expected a tensor of one weight per sample: "
                "torch.as_tensor(sample_weight)"
            )
        if given.shape != like.shape:
            raise ValueError(
                f"sample_weight has shape {tuple(given.shape)}; expected one weight per sample, {tuple(like.shape)}"
            )
        weight = given.to(like)
        total = weight.sum()
        require(
            (weight >= 0) & (total > 0) & (total < math.inf),
            "sample_weight must be finite, non-negative and not all zero: a negative one would make the loss concave",
        )
        return weight

    def forward(self, scores: Any, target: Any, sample_weight: Tensor | None = None) -> Tensor:
        """Σ_i p_i (⟨s_i, u_i⟩ + c_i), whose gradient in the scores is p_i s_i: none flows through the choice."""
        if isinstance(parts(scores)[0], Proxy):
            return self._call(scores, target, sample_weight)
        return self.evaluate(*self.prepare(scores, target), sample_weight)

    def _call(self, scores: Any, *rest: Any) -> Tensor:
        """A node that calls this module, for ``torch.fx``: a proxy has no shape to check."""
        tracer: Any = parts(scores)[0].tracer  # type: ignore[attr-defined]
        return cast(Tensor, tracer.create_proxy("call_module", tracer.path_of_module(self), (scores, *rest), {}))

    def evaluate(self, scores: Any, target: Any, sample_weight: Tensor | None = None) -> Tensor:
        """The value of prepared scores and target."""
        p = self.coefficients(scores, target, sample_weight)
        with without_autocast(parts(scores)[0]):
            with torch.no_grad():
                atom = self.direction(detached(scores), target)
            self._check(atom, scores)
            return self._reduced(atom.at(scores), p, Origin(self, scores, target, p, atom))

    def _reduced(self, each: Tensor, p: Tensor | float, origin: Origin) -> Tensor:
        """Σ_i p_i ℓ_i with its origin; for ``reduction="none"`` the ``[n]`` values p_i ℓ_i."""
        if self.reduction == "none":
            return p * each
        value = torch.dot(p, each) if isinstance(p, Tensor) else p * each.sum()
        if value.requires_grad:
            value.origin = origin  # type: ignore[attr-defined]
        return value

    def _check(self, atom: Atom, scores: Scores) -> None:
        given = [tuple(s.shape) for s in parts(atom.s)]
        expected = [tuple(u.shape) for u in parts(scores)]
        n = expected[0][0]
        if given != expected or tuple(atom.offset.shape) != (n,):
            raise ValueError(
                f"{type(self).__name__}.oracle returned s of shape {given} and offset of shape "
                f"{tuple(atom.offset.shape)}; expected the shape of the scores, {expected}, and ({n},)"
            )

    def extra_repr(self) -> str:
        """The options, which differ between losses."""
        return f"reduction={self.reduction!r}" + (", smooth=True" if self.smooth else "")


class PiecewiseLinearLoss(ConvexLoss):
    """A loss with finitely many atoms, whose hull is a polytope: the hinges and their relatives."""


def require(ok: Tensor, message: str) -> None:
    """Raise ValueError unless ``ok`` holds everywhere; on an accelerator the device asserts, without synchronising.

    >>> require(torch.tensor([True, False]), "every entry must hold")
    Traceback (most recent call last):
    ValueError: every entry must hold
    """
    if in_transform():  # whose tensors have no values to read
        return
    if torch.compiler.is_compiling():
        assert_async(ok.all(), message)
        return
    holds = ok.all()
    try:
        assert_async(holds, message)
    except RuntimeError as error:
        raise ValueError(message) from error
