"""Checks of scores, sizes, labels and trees, before a structure puts them into its standard form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import FORBIDDEN, integer_target, known, require, widened

CYCLE = "{} got parents with a cycle: no root is reached from some node"


def check_parts(name: str, scores: Any, form: str) -> Tensor:
    """Scores of the shape that ``form`` describes, such as ``[B, T, T, 3]``; −inf becomes FORBIDDEN."""
    sizes: dict[str, int] = {}
    names = form.strip("[]").split(", ")
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else ()
    same = all(sizes.setdefault(n, int(n) if n.isdigit() else d) == d for n, d in zip(names, shape, strict=False))
    if len(shape) != len(names) or 0 in shape or not same:
        raise ValueError(f"{name} got scores of {shape or type(scores).__name__}; expected {form}")
    if not scores.is_floating_point():
        raise TypeError(f"{name} got scores of {scores.dtype}; expected floating-point numbers: scores.float()")
    return widened(scores).clamp(min=FORBIDDEN)


def unpack(target: Any, given: Any) -> tuple[Any, Any]:
    """A target that may be (labels, sizes); if it is not, the sizes are the ``given`` ones."""
    return tuple(target) if isinstance(target, (tuple, list)) and len(target) == 2 else (target, given)


def check_sizes(name: str, given: Any, most: tuple[int, ...], like: Tensor) -> Tensor:
    """The sizes of the samples: ``[B]``, or ``[B, d]`` for d numbers; all of them the largest possible if None."""
    shape = (len(like), len(most)) if len(most) > 1 else (len(like),)
    limit = torch.stack([like.new_full(shape[:1], n, dtype=torch.long) for n in most], 1).reshape(shape)
    if given is None:
        return limit
    sizes = torch.as_tensor(given, device=like.device)
    if sizes.is_floating_point() or sizes.dtype == torch.bool or sizes.shape != shape:
        raise ValueError(f"{name} got lengths of {tuple(sizes.shape)}, {sizes.dtype}; expected {shape} integers")
    require((sizes >= 1) & (sizes <= limit), f"{name} got a length outside [1, {most}]: leave out empty samples")
    return sizes.long()


def before(n: int, sizes: Tensor) -> Tensor:
    """Which of the positions 0 … n − 1 are before the sizes ``[B]``, ``[B, n]``."""
    return torch.arange(n, device=sizes.device) < sizes[:, None]


def at(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b]], ``[B, ...]``."""
    return x[torch.arange(len(x), device=x.device), index]


def check_scores(name: str, scores: Any, form: str) -> tuple[Any, ...]:
    """Scores as ``form`` lists them at most: unary ``[B, V, K]``, pairwise in the same dtype, and the others as given.

    −inf becomes :data:`FORBIDDEN`, which no gradient reaches; NaN and +inf stay, and make the loss NaN or infinite.
    """
    if not isinstance(scores, (tuple, list)) or len(scores) < 2 or not isinstance(scores[1], Tensor):
        raise TypeError(
            f"{name} got a {type(scores).__name__} as scores; expected a tuple (unary, pairwise) of tensors"
        )
    if len(scores) > form.count(",") + 1:
        raise ValueError(f"{name} got {len(scores)} scores; expected {form}")
    unary, pairwise, *more = scores
    if not isinstance(unary, Tensor) or unary.dim() != 3 or unary.numel() == 0:
        given = tuple(unary.shape) if isinstance(unary, Tensor) else type(unary).__name__
        raise ValueError(f"{name} got unary scores of {given}; expected [B, T, K]: samples, positions, labels")
    unary = widened(unary)
    return unary.clamp(min=FORBIDDEN), pairwise.to(unary.dtype).clamp(min=FORBIDDEN), *more


def check_pairwise(name: str, pairwise: Tensor, *shapes: tuple[int, ...]) -> None:
    """Raise ValueError unless the pairwise scores have one of the shapes."""
    if pairwise.shape not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(f"{name} got pairwise scores of shape {tuple(pairwise.shape)}; expected {expected}")


def check_nodes(
    name: str, labels: Any, given: Any, unary: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor, bool, bool]:
    """Labels ``[B, V]``, all 0 if None, which nodes exist ``[B, V]``, whether all do, and whether there may be holes.

    ``given``: lengths ``[B]`` or a mask ``[B, V]``; a node whose label is to be ignored does not exist, either.
    """
    (B, V, _), device = unary.shape, unary.device
    y = torch.zeros(B, V, dtype=torch.long, device=device)
    if labels is not None:
        y = integer_target(name, labels, (B, V), "labels")
    nodes = kept = y != ignore_index
    holes = not known(kept.all())
    if given is not None:
        lengths = torch.as_tensor(given, device=device)
        is_mask = lengths.dtype in (torch.bool, torch.uint8) and lengths.dim() == 2
        if is_mask and lengths.shape != (B, V):
            raise ValueError(
                f"{name} got a mask of shape {tuple(lengths.shape)}; expected that of the labels, {(B, V)}"
            )
        if is_mask:
            inside = lengths.bool()
        else:
            inside = torch.arange(V, device=device) < check_sizes(name, lengths, (V,), unary)[:, None]
        nodes = inside & kept
        holes = is_mask or not known((kept | ~inside).all())
    require(nodes.any(1), f"{name} got an empty sample: leave out samples whose mask is False everywhere")
    return y, nodes, given is None and not holes, holes


def check_image(name: str, scores: Any, target: Any) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Scores (unary ``[B, H, W]``, right, down) with one weight per pair of neighbours, labels, 0 if None, and mask."""
    if not isinstance(scores, (tuple, list)) or len(scores) != 3:
        raise TypeError(f"{name} got a {type(scores).__name__} as scores; expected a tuple (unary, right, down)")
    unary, right, down = (widened(u) for u in scores)
    if unary.dim() != 3 or unary.numel() == 0 or min(unary.shape[1:]) < 2:
        given = f"{name} got unary scores of shape {tuple(unary.shape)}"
        raise ValueError(f"{given}; expected [B, H, W] with at least 2 × 2 pixels (a line is a chain: ChainHinge)")
    B, H, W = unary.shape
    shapes = (B, H, W - 1), (B, H - 1, W)
    try:
        right, down = (w.to(unary.dtype).expand(shape) for w, shape in zip((right, down), shapes, strict=True))
    except RuntimeError as error:
        given = f"{name} got right and down of shapes {tuple(right.shape)} and {tuple(down.shape)}"
        raise ValueError(f"{given}; expected what expands to {shapes[0]} and {shapes[1]}") from error
    labels, mask = unpack(target, None)
    every = torch.ones_like(unary, dtype=torch.bool)
    mask = every if mask is None else integer_target(name, mask, unary.shape, "a mask").bool()
    require(mask.flatten(1).any(1), f"{name} got an image without any pixel in its mask: leave it out")
    y = torch.where(mask, integer_target(name, ~every if labels is None else labels, unary.shape, "labels"), 0)
    require((y == 0) | (y == 1), f"{name} got a label that is not 0 or 1 (leave out pixels with a mask)")
    return (unary, right, down), y, mask


def check_parents(name: str, parents: Any, nodes: Tensor, holes: bool) -> Tensor:
    """The parents ``[B, V]``, −1 at roots and on padding; where a mask leaves a node out, its children move up."""
    if parents is None:
        raise TypeError(f"{name} needs the trees: decode(scores, parents=parents)")
    V = nodes.shape[1]
    parents = integer_target(name, torch.as_tensor(parents, device=nodes.device), nodes.shape, "parents")
    valid = (parents >= -1) & (parents < (V if holes else nodes.sum(1, keepdim=True)))
    require(valid | ~nodes, f"{name} got a parent that is not a node: expected -1 (a root) or the index of a node")
    parents = torch.where(valid, parents, -1)
    if holes:
        for _ in range(V.bit_length()):  # every pass doubles the number of masked ancestors that are skipped
            above = parents.clamp(min=0)
            parents = torch.where((parents >= 0) & ~nodes.gather(1, above), parents.gather(1, above), parents)
        require((parents < 0) | nodes.gather(1, parents.clamp(min=0)) | ~nodes, CYCLE.format(name))
    return torch.where(nodes, parents, -1)
