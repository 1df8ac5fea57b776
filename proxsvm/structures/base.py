"""A structure is one recursion: the sum over all labellings in a semiring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from proxsvm._scores import FORBIDDEN, Scores, detached, inner, like, parts, widened

Reduce: TypeAlias = "Callable[[Tensor, int], Tensor]"


def maximum(x: Tensor, dim: int) -> Tensor:
    """The ⊕ of (max, +). Its gradient is that of one of the largest entries, also where they tie.

    >>> maximum(torch.tensor([1.0, 3.0]), 0)
    tensor(3.)
    """
    return x.max(dim).values


def log_sum_exp(x: Tensor, dim: int) -> Tensor:
    """The ⊕ of (logsumexp, +), whose gradient is the softmax.

    >>> log_sum_exp(torch.zeros(2), 0)
    tensor(0.6931)
    """
    return torch.logsumexp(x, dim)


class Marginals(Protocol):
    """The marginals of a batch in cvxpy, for ``ExactQP``."""

    def express(self, with_entropy: bool) -> tuple[tuple[Any, ...], list[Any], Any]:
        """Variables ``[n, size]`` for each score tensor, their constraints, and the entropy ``[n]``, or None."""

    def entropy(self, mu: tuple[Tensor, ...]) -> Tensor | None:
        """The entropy of marginals, ``[n]``; None where it has no formula."""


class Structure:
    """The labellings ȳ of a sample, whose scores ⟨φ(ȳ), u⟩ are sums over parts.

    A structure defines :meth:`features`, which is φ, and :meth:`total`, the recursion. With ⊕ = max the total is the
    best score and its gradient the best labelling; with ⊕ = logsumexp it is log Z, and its gradient the marginals. So
    ``StructuredHinge(structure)`` and ``CRF(structure)`` follow, with ``decode`` and ``marginals``.

    :meth:`prepare` checks the input and puts it into a standard form; φ, Δ and the recursion see that form alone. A
    prepared target is any object that says which labelling is true and which parts exist. ``docs/extend.md`` has an
    example of 15 lines.
    """

    exact: bool = True  # whether `best` always finds the best labelling
    likelihood: bool = True  # whether `total` can sum over all labellings

    # What a structure defines.

    def prepare(self, name: str, scores: Any, target: Any, **given: Any) -> tuple[Any, Any]:
        """Checked scores, in which −inf is :data:`FORBIDDEN`, and the target; ``name`` is the loss's, for errors.

        Without a target (None), ``given`` says what the sample is: its lengths, its tree.
        """
        return like(scores, tuple(widened(u).clamp(min=FORBIDDEN) for u in parts(scores))), target

    def expand(self, scores: Any, target: Any) -> Any:
        """Prepared scores with one entry per sample and part; the identity unless samples share scores."""
        return scores

    def features(self, target: Any, scores: Any) -> Scores:
        """φ(y): which parts the true labelling has, in the shapes of expanded scores."""
        raise NotImplementedError(f"{type(self).__name__} must define features(target, scores)")

    def total(self, scores: Any, target: Any, reduce: Reduce) -> Tensor:
        """⊕ over all labellings of ⟨φ(ȳ), u⟩, ``[n]``, with + as ⊗: the recursion, in operations of autograd.

        A structure that defines :meth:`best` instead has the score of that labelling, and no sum over all of them.
        """
        if type(self).best is Structure.best:
            raise NotImplementedError(f"{type(self).__name__} must define total(scores, target, reduce)")
        return inner(self.best(detached(scores), target), scores)

    def cost(self, target: Any, scores: Any, table: Tensor | None = None) -> Any:
        """Δ as what each part costs, in the structure of the scores, None for a tensor of zeros:

            Δ(ȳ, y) = ⟨cost, φ(ȳ) − φ(y)⟩ ≥ 0

        By default the number of parts that y does not have. ``table`` is a ``[K, K]`` matrix (predicted, true), for
        structures whose parts have labels.
        """
        if table is not None:
            raise ValueError(f"{type(self).__name__} has no labels for a cost matrix to compare; expected cost=None")
        phi = self.features(target, scores)
        return like(phi, tuple(1 - x for x in parts(phi)))

    def size(self, target: Any, scores: Any) -> Tensor:
        """How many parts y has, ``[n]``: what ``normalize`` divides Δ by."""
        return sum(x.flatten(1).sum(1) for x in parts(self.features(target, scores)))  # type: ignore[return-value]

    def labels(self, phi: Any, target: Any) -> Any:
        """The labelling of indicators φ, in the form in which users give and get it."""
        return phi

    def marginals(self, mu: Any, target: Any) -> Any:
        """Marginals μ in the form in which users get them."""
        return mu

    def polytope(self, scores: Any, target: Any) -> Marginals | None:
        """All marginals, where they have a short description; else ``ExactQP`` asks the oracle for labellings."""
        return None

    # What follows from that.

    def best(self, scores: Any, target: Any) -> Scores:
        """φ(ȳ) of the best labelling of expanded scores."""
        found: Scores = gradient(lambda u: self.total(u, target, maximum), scores)
        return found

    def relative(self, scores: Any, target: Any) -> tuple[Any, Tensor]:
        """Scores that differ from the given ones by the same amount for every labelling, and the score of y in them.

        −inf where y is forbidden. A structure whose labellings have equally many parts can choose them so that the
        score of y is 0, and large scores do not cancel.
        """
        scores = self.expand(scores, target)
        truth = inner(self.features(target, scores), scores)
        return scores, torch.where(truth <= FORBIDDEN / 2, -torch.inf, truth)

    def decode(self, scores: Any, target: Any) -> Any:
        """The best labelling of prepared scores, in the form in which users get it."""
        return self.labels(self.best(self.expand(scores, target), target), target)

    def excess(self, scores: Any, target: Any, reduce: Reduce) -> Tensor:
        """⊕ over all ȳ of score(ȳ) − score(y), ``[n]``, differentiable; +inf where y is forbidden."""
        scores, truth = self.relative(scores, target)
        return self.total(scores, target, reduce) - truth

    def labelled(self, name: str, scores: Any, target: Any) -> tuple[Any, Any]:
        """:meth:`prepare` with a target, for the loss ``name``."""
        if target is None:
            raise TypeError(f"{name} got no target; expected that of a {type(self).__name__}")
        return self.prepare(name, scores, target)


def add(a: Any, b: Any, scale: float = 1) -> Any:
    """a + scale · b, tensor by tensor; None in b is 0."""
    return like(a, tuple(x if y is None else x + scale * y for x, y in zip(parts(a), parts(b), strict=True)))


def gradient(f: Callable[[Any], Tensor], scores: Any) -> Any:
    """The gradient of Σ f at ``scores``, in their structure; 0 for a tensor that f does not use."""
    if torch.compiler.is_compiling():
        return torch.func.grad(lambda u: f(u).sum())(scores)
    try:
        u = tuple(x.detach().requires_grad_() for x in parts(scores))
    except RuntimeError:  # inside a transform of torch.func
        return torch.func.grad(lambda u: f(u).sum())(scores)
    with torch.enable_grad():
        found = torch.autograd.grad(f(like(scores, u)).sum(), u, allow_unused=True)
    return like(scores, tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, u, strict=True)))
