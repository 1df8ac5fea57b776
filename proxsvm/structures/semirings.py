"""What a recursion sums with, its ⊕ (⊗ is +): the best labelling, all of them, one at random, or the k best."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, TypeAlias

import torch
from torch import Tensor

from proxsvm._scores import FORBIDDEN

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


class Sampled:
    """The value of logsumexp with the gradient of one entry, drawn with the probabilities of the softmax.

    The gradient of a total follows one entry of each ⊕ that it reaches, from the last back to the parts: a labelling
    drawn from p(ȳ) ∝ exp score(ȳ).

    >>> Sampled()(torch.tensor([0.0, -torch.inf]), 0)
    tensor(0.)
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def index(self, p: Tensor, dim: int) -> Tensor:
        """Indices drawn with the probabilities p, or with multiples of them; ``dim`` is kept."""
        return (p / torch.empty_like(p).exponential_(generator=self.generator)).argmax(dim, keepdim=True)

    def __call__(self, x: Tensor, dim: int) -> Tensor:
        """⊕."""
        drawn = x.gather(dim, self.index(x.detach().softmax(dim), dim)).squeeze(dim)
        return drawn + (x.logsumexp(dim) - drawn).detach()


class KBest:
    """The k largest of all values, as :class:`Ranked`; the gradient of each is its labelling."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, x: Any, dim: int) -> Any:
        """⊕."""
        values = x.values if isinstance(x, Ranked) else x[None]
        return Ranked.largest(values.movedim(dim % (values.dim() - 1) + 1, 1).flatten(0, 1), self.k)


class Ranked:
    """The k largest values of every entry, ``values`` ``[k, ...]``, FORBIDDEN where there are fewer.

    A recursion uses it as a tensor ``[...]``: a sum of two is ⊗, the k largest of all pairs of values, and entries can
    be rearranged. A number or tensor beside it has one value per entry.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @classmethod
    def largest(cls, values: Tensor, k: int) -> Ranked:
        """The k largest along the first dimension."""
        missing = values.new_full((max(0, k - len(values)), *values.shape[1:]), FORBIDDEN)
        return cls(torch.cat([values, missing]).topk(k, 0).values)

    def __add__(self, other: Any) -> Ranked:
        """⊗."""
        if not isinstance(other, Ranked):
            return Ranked(self.values + other)
        return Ranked.largest((self.values[:, None] + other.values).flatten(0, 1), len(self.values))

    __radd__ = __add__

    def sum(self, dim: int) -> Ranked:
        """⊗ of the entries along a dimension."""
        found: Ranked = reduce(add, self.unbind(dim))
        return found

    def __len__(self) -> int:
        return self.values.shape[1]

    def __getitem__(self, index: Any) -> Any:
        return _rearranged(Tensor.__getitem__, self, index)

    def __getattr__(self, name: str) -> Any:
        method = getattr(Tensor, name)
        if not callable(method):  # device, dtype, shape
            return getattr(self.values[0], name)
        return partial(_rearranged, method, self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        """Functions of torch, and tensor + ranked."""
        if function.__name__ in ("add", "__add__"):
            return args[1] + args[0]
        return _rearranged(function, *args, **(options or {}))


REARRANGEMENTS = """__getitem__ cat clamp diagonal expand flatten flip gather movedim pad permute reshape select squeeze
    stack transpose unbind unsqueeze where"""


def _rearranged(function: Any, *args: Any, **options: Any) -> Any:
    """``function`` of the values of each rank."""
    if function.__name__ not in REARRANGEMENTS.split():
        raise NotImplementedError(f"{function.__name__}() is neither ⊕, + nor a rearrangement: it has no k best")
    flat = [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else [arg])]
    k = next(len(x.values) for x in flat if isinstance(x, Ranked))
    each = [function(*(_of_rank(j, x) for x in args), **options) for j in range(k)]
    if isinstance(each[0], Tensor):
        return Ranked(torch.stack(each))
    return tuple(Ranked(torch.stack(ranks)) for ranks in zip(*each, strict=True))


def _of_rank(j: int, x: Any) -> Any:
    """Rank j of an argument; what is not ranked has rank 0 alone."""
    if isinstance(x, Ranked):
        return x.values[j]
    if isinstance(x, list):
        return [_of_rank(j, y) for y in x]
    if j == 0 or not (isinstance(x, float) or (isinstance(x, Tensor) and x.is_floating_point())):
        return x
    return torch.full_like(x, FORBIDDEN) if isinstance(x, Tensor) else FORBIDDEN
