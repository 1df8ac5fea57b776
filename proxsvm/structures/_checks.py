"""Checks of scores, sizes and labels, before a structure puts them into its standard form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import FORBIDDEN, dense, integer_target, known, one_hot, require, widened


def check_parts(name: str, scores: Any, form: str, what: str = "scores", hint: str = "") -> Tensor:
    """Scores of the shape that ``form`` describes, such as ``[B, T, T, 3]``; −inf becomes FORBIDDEN."""
    sizes: dict[str, int] = {}
    names = form.strip("[]").split(", ")
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else ()
    same = all(sizes.setdefault(n, int(n) if n.isdigit() else d) == d for n, d in zip(names, shape, strict=False))
    if len(shape) != len(names) or 0 in shape or not same:
        raise ValueError(f"{name} got {what} of {shape or type(scores).__name__}; expected {form}{hint}")
    return floored(dense(name, scores, what))


def floored(u: Tensor) -> Tensor:
    """Scores in which −inf is FORBIDDEN, which no gradient reaches; a clamp takes five times as long, backwards."""
    return F.threshold(widened(u), FORBIDDEN, FORBIDDEN)


def unpack(target: Any, given: Any) -> tuple[Any, Any]:
    """A target that may be (labels, sizes); if it is not, the sizes are the ``given`` ones."""
    return tuple(target) if isinstance(target, (tuple, list)) and len(target) == 2 else (target, given)


def check_sizes(name: str, given: Any, most: tuple[int, ...], like: Tensor) -> Tensor:
    """The sizes of the samples: ``[B]``, or ``[B, d]`` for d numbers; all of them the largest possible if None."""
    limits = [like.new_full((len(like),), n, dtype=torch.long) for n in most]
    limit = torch.stack(limits, 1) if len(most) > 1 else limits[0]
    shape = limit.shape
    if given is None:
        return limit
    sizes = torch.as_tensor(given, device=like.device)
    if sizes.is_floating_point() or sizes.dtype == torch.bool or sizes.shape != shape:
        raise ValueError(f"{name} got lengths of {tuple(sizes.shape)}, {sizes.dtype}; expected {tuple(shape)} integers")
    longest = " × ".join(map(str, most))
    require((sizes >= 1) & (sizes <= limit), f"{name} got a length outside [1, {longest}]: leave out empty samples")
    return sizes.long()


def before(n: int, sizes: Tensor) -> Tensor:
    """Which of the positions 0 … n − 1 are before the sizes ``[B]``, ``[B, n]``."""
    return torch.arange(n, device=sizes.device) < sizes[:, None]


def by_width(u: Tensor) -> tuple[Tensor, ...]:
    """The diagonals of ``u`` ``[B, T, T]``: for each width w its entries [b, i, i + w], ``[B, T - w]``.

    All from one ``unbind``, so that the backward pass is one ``stack``.
    """
    B, T, _ = u.shape
    shifted = F.pad(u.flatten(1), (0, T)).reshape(B, T, T + 1)
    return tuple([x[:, : T - w] for w, x in enumerate(shifted.unbind(2)[:T])])


def at(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b]], ``[B, ...]``."""
    return x[torch.arange(len(x), device=x.device), index]


def check_tuple(name: str, scores: Any, form: str, least: int, most: int) -> None:
    """Raise TypeError or ValueError unless the scores are a tuple of tensors, ``least`` to ``most`` of them."""
    several = isinstance(scores, (tuple, list))
    if not several or not all(isinstance(x, Tensor) or (x is None and i >= least) for i, x in enumerate(scores)):
        given = type(scores).__name__ + (f" of {', '.join(type(x).__name__ for x in scores)}" if several else "")
        raise TypeError(f"{name} needs the scores {form}, expected a tuple of tensors; got a {given}")
    if not least <= len(scores) <= most:
        raise ValueError(f"{name} got {len(scores)} scores; expected {form}")


def check_scores(name: str, scores: Any, form: str) -> tuple[Any, ...]:
    """Scores as ``form`` lists them at most: unary ``[B, V, K]``, pairwise in the same dtype, and the others as given.

    −inf becomes :data:`FORBIDDEN`, which no gradient reaches; NaN and +inf stay, and make the loss NaN or infinite.
    """
    check_tuple(name, scores, form, 2, form.count(",") + 1)
    unary = check_parts(name, scores[0], "[B, T, K]", "unary scores", ": samples, positions, labels")
    return unary, floored(scores[1].to(unary.dtype)), *scores[2:]


def check_pairwise(name: str, pairwise: Tensor, *shapes: tuple[int, ...]) -> None:
    """Raise ValueError unless the pairwise scores have one of the shapes."""
    if pairwise.shape not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(f"{name} got pairwise scores of shape {tuple(pairwise.shape)}; expected {expected}")


def label_costs(labels: Tensor, scores: Tensor, table: Tensor | None) -> Tensor:
    """What each of the K labels costs where ``labels`` are the true ones, ``[..., K]``: 1 if wrong, or as in ``table``.

    >>> label_costs(torch.tensor([1]), torch.zeros(3), None)
    tensor([[1., 0., 1.]])
    """
    K = scores.shape[-1]
    if table is None:
        return 1 - one_hot(scores, labels, K)
    if len(table) != K:
        raise ValueError(f"cost is for {len(table)} labels, but the scores have {K}")
    return table.to(scores).T[labels]


def check_nodes(
    name: str, labels: Any, given: Any, unary: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor, bool, bool]:
    """Labels ``[B, V]``, all 0 if None, which nodes exist ``[B, V]``, whether all do, and whether there may be holes.

    ``given``: lengths ``[B]`` or a mask ``[B, V]``; a node whose label is to be ignored does not exist, either.
    """
    (B, V, _), device = unary.shape, unary.device
    if labels is None:
        y = torch.zeros(B, V, dtype=torch.long, device=device)
    else:
        y = integer_target(name, labels, (B, V), "labels")
    nodes = kept = y != ignore_index
    holes = not known(kept.all())
    if given is None and not holes:
        return y, nodes, True, False
    if given is not None:
        lengths = torch.as_tensor(given, device=device)
        is_mask = lengths.dtype in (torch.bool, torch.uint8) and lengths.dim() == 2
        if is_mask:
            inside = integer_target(name, lengths, (B, V), "a mask", ", that of the labels").bool()
        else:
            inside = before(V, check_sizes(name, lengths, (V,), unary))
        nodes = inside & kept
        holes = is_mask or not known((kept | ~inside).all())
    require(nodes.any(1), f"{name} got an empty sample: leave out samples whose mask is False everywhere")
    return y, nodes, False, holes
