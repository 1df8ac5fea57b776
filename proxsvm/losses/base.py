"""A loss is one oracle: every convex piecewise-linear loss is the support function of a polytope.

ℓ(u; y) = max over (s, c) in S(y) of ⟨s, u⟩ + c
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from proxsvm.losses.hulls import Box, Simplex

Scores: TypeAlias = "Tensor | tuple[Tensor, ...]"
Reduction: TypeAlias = Literal["mean", "sum", "none"]
SLICE = 2**18  # elements that fit into a core's cache


def parts(scores: Scores) -> tuple[Tensor, ...]:
    """The tensors of ``scores``, which is one tensor or a tuple of them."""
    return scores if isinstance(scores, tuple) else (scores,)


def like(scores: Scores, tensors: tuple[Tensor, ...]) -> Scores:
    """``tensors`` in the structure of ``scores``: the inverse of :func:`parts`."""
    return tensors if isinstance(scores, tuple) else tensors[0]


def in_transform() -> bool:
    """Whether a transform of ``torch.func`` is at work: its tensors have no memory, and cannot be written into.

    >>> in_transform(), torch.func.vmap(lambda x: x + in_transform())(torch.zeros(2))
    (False, tensor([1., 1.]))
    """
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def in_slices(f: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """``f(*rows)``, a slice of rows at a time on the CPU: what ``f`` makes on the way stays small, and in the cache.

    >>> in_slices(lambda a, b: a + b, torch.ones(3), torch.ones(3))
    tensor([2., 2., 2.])
    """
    first = rows[0]
    size = max(1, len(first) * SLICE // max(1, first.numel()))
    if size >= len(first) or first.device.type != "cpu" or torch.compiler.is_compiling():
        return f(*rows)
    return torch.cat([f(*part) for part in zip(*(torch.split(r, size) for r in rows), strict=True)])


def row_dots(a: Tensor, b: Tensor) -> Tensor:
    """⟨a_i, b_i⟩ for each row, ``[n]``; torch would make all the products first.

    >>> row_dots(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([11.])
    """
    return in_slices(torch.linalg.vecdot, a, b)


class Atom(NamedTuple):
    """A piece of the loss for each sample: the affine function u ↦ ⟨s, u⟩ + c.

    ``s`` has the structure and shapes of the scores (first dimension: the n samples), ``offset`` is c, ``[n]``.

    >>> atom = Atom(s=torch.tensor([[1.0, -1.0]]), offset=torch.tensor([1.0]))
    >>> atom.b(torch.tensor([[0.5, 2.0]]))
    tensor([-0.5000])
    """

    s: Scores
    offset: Tensor

    def b(self, scores: Scores) -> Tensor:
        """The atom's value at each sample, b = ⟨s, u⟩ + c, ``[n]``."""
        n = len(self.offset)
        value = self.offset
        for s, u in zip(parts(self.s), parts(scores), strict=True):
            value = value + row_dots(s.reshape(n, -1), u.reshape(n, -1))
        return value

    def where(self, chosen: Tensor, other: Atom) -> Atom:
        """This atom for the samples that are ``chosen`` (bool, ``[n]``), ``other`` for the rest."""

        def mix(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(chosen.reshape(-1, *[1] * (a.dim() - 1)), a, b)

        mixed = tuple(mix(a, b) for a, b in zip(parts(self.s), parts(other.s), strict=True))
        return Atom(like(self.s, mixed), mix(self.offset, other.offset))


class Origin(NamedTuple):
    """What a loss value was made from; the value carries it, so that a solver can build its problem."""

    loss: PiecewiseLinearLoss
    scores: Scores
    target: Any
    p: Tensor | float  # one for each sample, or one for all
    atom: Atom | None = None  # the one that was differentiated, so that it need not be found again

    @property
    def coefficients(self) -> Tensor:
        """The weight p_i with which each sample entered the value, ``[n]``."""
        if isinstance(self.p, Tensor):
            return self.p
        u = parts(self.scores)[0].detach()
        return u.new_full(u.shape[:1], self.p)


class PiecewiseLinearLoss(nn.Module):
    """Base of all losses. A subclass writes :meth:`oracle`; value, gradient, dual and step-size follow.

    The value is Σ_i p_i ℓ(u_i; y_i) with p_i = 1/n for ``reduction="mean"`` (with sample weights the weighted
    mean, p_i = ω_i / Σω), p_i = 1 (or ω_i) for ``"sum"``; ``"none"`` returns the ``[n]`` values p_i ℓ(u_i; y_i).

    >>> class Hinge(PiecewiseLinearLoss):
    ...     '''max(0, 1 - y·u) for y in {-1, 1}.'''
    ...     def oracle(self, scores, target):
    ...         active = (target * scores < 1).to(scores)
    ...         return Atom(-target * active, active)
    >>> Hinge()(torch.tensor([0.5, 3.0]), torch.tensor([-1.0, 1.0]))
    tensor(0.7500)
    """

    smooth: bool = False  # a loss that can be smoothed sets it, and writes `smoothed`

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction is {reduction!r}; expected 'mean', 'sum' or 'none'")
        self.reduction = reduction

    # What a loss says of itself.

    @abstractmethod
    def oracle(self, scores: Any, target: Any) -> Atom:
        """The best atom at ``scores``: argmax over (s, c) in S(y) of ⟨s, u⟩ + c, for each sample."""
        raise NotImplementedError(f"{type(self).__name__} must define oracle(scores, target) -> Atom")

    def smoothed(self, scores: Any, target: Any) -> Atom:
        """A smooth feasible atom (appendix A.6), used in training where ``self.smooth`` is set."""
        raise NotImplementedError(f"{type(self).__name__} has no smoothed atom")

    def values(self, scores: Any, target: Any) -> Tensor | None:
        """The ``[n]`` values as a formula that autograd differentiates, where a loss has one that is cheaper than s."""
        return None

    def prepare(self, scores: Any, target: Any) -> tuple[Any, Any]:
        """Check the input and bring it to standard form; raises before anything has changed.

        Half-precision scores become float32, because a value is a sum of many terms.
        """
        first = parts(scores)[0]
        if not isinstance(first, Tensor) or first.dim() == 0 or first.numel() == 0:
            given = f"shape {tuple(first.shape)}" if isinstance(first, Tensor) else f"a {type(first).__name__}"
            raise ValueError(
                f"{type(self).__name__} got scores of {given}; expected a tensor with at least one sample in its "
                "first dimension (skip empty batches)"
            )
        half = (torch.float16, torch.bfloat16)
        return like(scores, tuple(u.float() if u.dtype in half else u for u in parts(scores))), target

    def vertices(self, scores: Any, target: Any) -> list[Atom] | None:
        """All of S(y) as a list of atoms, where that is a short list; lets ExactQP skip its search for atoms."""
        return None

    def polytope(self, scores: Any, target: Any) -> Polytope | None:
        """The hull of S(y) in a few linear constraints of cvxpy, where the loss has such a form, for ExactQP."""
        return None

    def hull(self, scores: Any, target: Any) -> Simplex | Box | None:
        """The hull of S(y) where it is a simplex or a box: the fast solvers then know its exact block step."""
        return None

    # What follows from it.

    def direction(self, scores: Any, target: Any) -> Atom:
        """The atom of a training step: the oracle's, or the smoothed one where it can help (⟨s, b⟩ > 0)."""
        exact = self.oracle(scores, target)
        if not self.smooth:
            return exact
        soft = self.smoothed(scores, target)
        return soft.where(soft.b(scores) > 0, exact)

    def _share(self, n: int) -> float:
        """The p_i of n samples without weights."""
        return 1 / n if self.reduction == "mean" else 1.0

    def coefficients(self, offset: Tensor, sample_weight: Tensor | None) -> Tensor:
        """The weight p_i with which each sample enters the value, ``[n]``."""
        if sample_weight is None:
            return torch.full_like(offset, self._share(len(offset)))
        if sample_weight.shape != offset.shape:
            raise ValueError(
                f"sample_weight has shape {tuple(sample_weight.shape)}; expected one weight a sample, "
                f"{tuple(offset.shape)}"
            )
        weight = sample_weight.to(offset)
        require(
            (weight >= 0) & (weight.sum() > 0),
            "sample_weight must be non-negative and not all zero: a negative weight would make the loss concave",
        )
        return weight / weight.sum() if self.reduction == "mean" else weight

    def forward(self, scores: Any, target: Any, sample_weight: Tensor | None = None) -> Tensor:
        """Σ_i p_i (⟨s_i, u_i⟩ + c_i), whose gradient in the scores is p_i s_i: none flows through the choice."""
        scores, target = self.prepare(scores, target)
        each, atom = self.values(scores, target), None
        if each is None:
            with torch.no_grad():
                atom = self.direction(like(scores, tuple(u.detach() for u in parts(scores))), target)
            self._check(atom, scores)
            each = atom.b(scores) if self.reduction == "none" else atom.offset
        p = self.coefficients(each.detach(), sample_weight)
        if self.reduction == "none":
            return p * each
        value = torch.dot(p, each)
        if atom is not None:
            for s, u in zip(parts(atom.s), parts(scores), strict=True):
                if sample_weight is None:  # all p_i are one number: no weighted copy of s
                    value = torch.add(value, torch.dot(s.reshape(-1), u.reshape(-1)), alpha=self._share(len(s)))
                else:
                    value = value + torch.dot((s * p.reshape(-1, *[1] * (s.dim() - 1))).reshape(-1), u.reshape(-1))
        if value.requires_grad:
            value.origin = Origin(self, scores, target, p, atom)  # type: ignore[attr-defined]
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
        """The options that differ from one loss to the next."""
        return f"reduction={self.reduction!r}" + (", smooth=True" if self.smooth else "")


class Polytope(NamedTuple):
    """The hull of S(y) for a batch, in cvxpy's variables.

    ``s``: one expression a score tensor, ``[n, size]`` flattened within the sample; ``offset``: ``[n]``.
    """

    s: tuple[Any, ...]
    offset: Any
    constraints: list[Any]


def require(ok: Tensor, message: str) -> None:
    """Raise ValueError unless ``ok`` holds everywhere; on an accelerator the device asserts, so nothing waits.

    >>> require(torch.tensor([True, False]), "every entry must hold")
    Traceback (most recent call last):
    ValueError: every entry must hold
    """
    if torch.compiler.is_compiling():
        torch._assert_async(ok.all(), message)  # type: ignore[no-untyped-call, unused-ignore]
        return
    try:
        torch._assert_async(ok.all(), message)  # type: ignore[no-untyped-call, unused-ignore]
    except RuntimeError as error:
        raise ValueError(message) from error
