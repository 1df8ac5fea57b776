"""A structure is one recursion: the sum over all labellings in a semiring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import FORBIDDEN, Scores, dense, detached, inner, integer_target, like, parts, per_sample, require
from proxsvm.structures.semirings import KBest, Reduce, Sampled, maximum


class Marginals:
    """The marginals of a batch in cvxpy, for ``ExactQP``."""

    def express(self, with_entropy: bool) -> tuple[tuple[Any, ...], list[Any], Any]:
        """Variables ``[n, size]`` for each score tensor, their constraints, and the entropy ``[n]``, or None."""
        raise NotImplementedError(f"{type(self).__name__} must define express(with_entropy)")

    def entropy(self, mu: tuple[Tensor, ...]) -> Tensor | None:
        """The entropy of marginals, ``[n]``; None where it has no formula."""
        return None


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

    def prepare(self, name: str, scores: Any, target: Any, *_: Any, **given: Any) -> tuple[Any, Any]:
        """Checked scores, in which −inf is :data:`FORBIDDEN`, and the target; ``name`` is the loss's, for errors.

        Without a target (None), ``given`` says what the sample is: its lengths, its tree.
        """
        return like(scores, tuple(u.clamp(min=FORBIDDEN) for u in parts(dense(name, scores)))), target

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
        if reduce is not maximum:
            raise NotImplementedError(f"{type(self).__name__} knows its best labelling alone: no sum, sample or k best")
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

    # What follows from that, for users.

    def sample(self, scores: Any, k: int = 1, *, generator: torch.Generator | None = None, **given: Any) -> list[Any]:
        """k labellings drawn from p(ȳ) ∝ exp score(ȳ), each in the form of ``decode``; independent and exact.

        ``given`` is what the structure needs to know of the samples: their ``lengths``, their ``parents``. Each of the
        k is one forward and one backward pass of the recursion.

        >>> from proxsvm.structures import Chain
        >>> unary = torch.tensor([[[0.0, -torch.inf], [0.0, 0.0]]])
        >>> drawn = torch.stack(Chain().sample((unary, torch.zeros(2, 2)), 400, generator=torch.manual_seed(0)))
        >>> drawn.double().mean(0).round(decimals=1)
        tensor([[0.0000, 0.5000]], dtype=torch.float64)
        """
        u, y = self.prepare(type(self).__name__, scores, None, **given)
        u, reduce = self.expand(u, y), Sampled(generator)
        return [self.labels(gradient(lambda u: self.total(u, y, reduce), u), y) for _ in range(k)]

    def k_best(self, scores: Any, k: int, **given: Any) -> tuple[list[Any], Tensor]:
        """The k labellings with the largest scores, the best first, each in the form of ``decode``; and the scores
        ``[k, n]``, −inf (and the best labelling again) where a sample has fewer.

        The recursion runs once, with k values in the place of one. Structures whose best labelling is no recursion
        (spanning trees, matchings, grids) have no k best.

        >>> from proxsvm.structures import Chain
        >>> unary = torch.tensor([[[0.0, 3.0], [1.0, 0.0]]])
        >>> Chain().k_best((unary, torch.zeros(2, 2)), 2)
        ([tensor([[1, 0]]), tensor([[1, 1]])], tensor([[4.],
                [3.]]))
        """
        if k < 1:
            raise ValueError(f"k is {k}; expected how many labellings to return, at least 1")
        u, y = self.prepare(type(self).__name__, scores, None, **given)

        def ranked(u: Any) -> Tensor:
            total: Any = self.total(u, y, KBest(k))
            values: Tensor = total.values
            return torch.where(values > FORBIDDEN / 2, values, values[:1] - torch.inf)  # with the gradient of the best

        values, phi = gradients(ranked, self.expand(u, y))
        return [self.labels(f, y) for f in phi], values

    # And for losses.

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
        return scores, F.threshold(truth, FORBIDDEN / 2, -torch.inf)

    def decode(self, scores: Any, target: Any) -> Any:
        """The best labelling of prepared scores, in the form in which users get it."""
        return self.labels(self.best(self.expand(scores, target), target), target)

    def excess(self, scores: Any, target: Any, reduce: Reduce) -> Tensor:
        """⊕ over all ȳ of score(ȳ) − score(y), ``[n]``, differentiable; +inf where y is forbidden."""
        scores, truth = self.relative(scores, target)
        return per_sample(self.total(scores, target, reduce), scores, f"{type(self).__name__}.total returned") - truth

    def labelled(self, name: str, scores: Any, target: Any) -> tuple[Any, Any]:
        """:meth:`prepare` with a target, for the loss ``name``."""
        if target is None:
            raise TypeError(f"{name} got no target; expected that of a {type(self).__name__}")
        return self.prepare(name, scores, target)


def as_structure(given: Any) -> Structure:
    """``given``, checked to be a structure and not, for example, its class."""
    if not isinstance(given, Structure):
        raise TypeError(f"structure is {given!r}; expected a Structure, such as Chain()")
    return given


class Parts(NamedTuple):
    """φ(y), shaped like the scores and 0 on padding, and the sizes of the samples, ``[B]`` or ``[B, 2]``.

    ``labels``: y itself, where Δ needs it.
    """

    phi: Tensor
    sizes: Tensor
    labels: Tensor | None = None


class PartStructure(Structure):
    """A structure whose prepared target is :class:`Parts`."""

    def features(self, target: Parts, scores: Any) -> Tensor:
        return target.phi


class ChartStructure(PartStructure):
    """Some cells of a chart have one of K labels: scores ``[B, S, T, K]``, labels ``[B, S, T]``, −1 elsewhere."""

    what = "label"

    def chart(self, name: str, u: Tensor, target: Any, sizes: Tensor, inside: Tensor) -> tuple[Tensor, Parts]:
        """Labels become indicators; ``inside`` says which cells exist."""
        labels, K = torch.full_like(inside, -1, dtype=torch.long), u.shape[3]
        if target is not None:
            labels = torch.where(inside, integer_target(name, target, u.shape[:3], f"{self.what}s"), -1)
            require((labels >= -1) & (labels < K), f"{name} got a {self.what} outside [-1, {K}), those of the scores")
            self.check(name, labels, sizes)
        phi = (labels[..., None] == torch.arange(K, device=u.device)).to(u)  # scatter() would copy its zeros
        every = inside[..., None].expand_as(u).contiguous()  # in one run over memory
        return torch.where(every, u, 0.0), Parts(phi, sizes)

    def check(self, name: str, labels: Tensor, sizes: Tensor) -> None:
        """Raise ValueError unless the labels ``[B, S, T]`` are those of a labelling."""

    def labels(self, phi: Tensor, target: Parts) -> Tensor:
        """The label of every cell that has one, −1 elsewhere."""
        return torch.where(phi.sum(3) > 0.5, phi.argmax(3), -1)


def add(a: Any, b: Any, scale: float = 1) -> Any:
    """a + scale · b, tensor by tensor; None in b is 0."""
    return like(a, tuple(x if y is None else x + scale * y for x, y in zip(parts(a), parts(b), strict=True)))


def gradient(f: Callable[[Any], Tensor], scores: Any) -> Any:
    """The gradient of Σ f at ``scores``, in their structure; 0 for a tensor that f does not use."""
    return gradients(lambda u: f(u)[None], scores)[1][0]


def gradients(f: Callable[[Any], Tensor], scores: Any) -> tuple[Tensor, list[Any]]:
    """f ``[k, n]`` at ``scores``, and the gradient of each of its k rows, as in :func:`gradient`."""
    u = leaves(scores)
    if u is None:
        found: Any = torch.func.vjp(f, scores)
        rows = torch.eye(len(found[0])).to(found[0])
        return found[0], [found[1](row[:, None].expand_as(found[0]))[0] for row in rows]
    with torch.enable_grad():
        values = f(like(scores, u))
        each = [torch.autograd.grad(row.sum(), u, retain_graph=True, allow_unused=True) for row in values]
    zeros = tuple(map(torch.zeros_like, u))
    filled = [tuple(z if g is None else g for g, z in zip(row, zeros, strict=True)) for row in each]
    return values.detach(), [like(scores, row) for row in filled]


def leaves(scores: Any) -> tuple[Tensor, ...] | None:
    """Leaves of a new graph; None where there can be none, and torch.func must differentiate."""
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return None
    try:
        return tuple(x.detach().requires_grad_() for x in parts(scores))
    except RuntimeError:  # inside a transform of torch.func, or a tensor of inference mode
        return None
