"""Binary images: every pixel is 0 or 1, and equal neighbours have a score."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from proxsvm._scores import integer_target, require
from proxsvm.structures._checks import check_parts, check_tuple, unpack
from proxsvm.structures.base import Structure
from proxsvm.structures.combinatorial import Cut, as_array, scipy_cut


class Image(NamedTuple):
    """The labels of B images, ``[B, H, W]``, and which of their pixels, pairs to the right and pairs below exist."""

    labels: Tensor
    inside: tuple[Tensor, Tensor, Tensor]


class Grid(Structure):
    """score(y) = Σ_i unary_i y_i + Σ_(i,j) w_ij [y_i = y_j] over 4-neighbours, w ≥ 0; the best image is a minimum cut.

    Any submodular pairwise score is of this form, up to a change of the unary ones.
    Scores: ``(unary, right, down)``, unary ``[B, H, W]``; right ``[B, H, W - 1]`` contains the w of each pixel and its
    right neighbour, down ``[B, H - 1, W]`` that of each pixel and the one below; both may be anything that expands to
    those shapes, such as one weight for all. A network keeps w ≥ 0 with a softplus, for example.
    Target: labels ``[B, H, W]`` in {0, 1}, or ``(labels, mask)`` with a bool mask that is False at pixels to leave out.
    A unary score of −inf forbids a 1; NaN and other infinite scores make the loss NaN: the optimizer skips the step.

    Args:
        negative: what to do with w < 0, for which the best image cannot be found in general. ``"refuse"`` raises an
            error. ``"project"`` trains with max(w, 0) instead; a multi-step solver may still move the linearised w
            below zero, where the cut is computed for max(w, 0) and is then approximate (``exact`` is False).
        cut: finds the image; :func:`scipy_cut` or :func:`maxflow_cut`, which is faster.
    """

    likelihood = False

    def __init__(self, *, negative: Literal["refuse", "project"] = "refuse", cut: Cut = scipy_cut) -> None:
        if negative not in ("refuse", "project"):
            raise ValueError(f"negative is {negative!r}; expected 'refuse' or 'project'")
        self.cut, self.exact = cut, negative == "refuse"

    def prepare(self, name: str, scores: Any, target: Any) -> tuple[Any, Image]:
        """Expand the weights to one per pair, and set the scores outside the mask to zero; labels are 0 if None."""
        check_tuple(name, scores, "(unary, right, down)", 3, 3)
        unary = check_parts(name, scores[0], "[B, H, W]", "unary scores")
        if min(unary.shape[1:]) < 2:
            raise ValueError(f"{name} got one line of pixels; expected at least 2 × 2 (a line is a chain: ChainHinge)")
        labels, mask = unpack(target, None)
        every = torch.ones_like(unary, dtype=torch.bool)
        m = every if mask is None else integer_target(name, mask, unary.shape, "a mask").bool()
        require(m.flatten(1).any(1), f"{name} got an image without any pixel in its mask: leave it out")
        y = torch.where(m, 0 if labels is None else integer_target(name, labels, unary.shape, "labels"), 0)
        require((y == 0) | (y == 1), f"{name} got a label that is not 0 or 1 (leave out pixels with a mask)")
        inside = m, m[:, :, :-1] & m[:, :, 1:], m[:, :-1] & m[:, 1:]
        try:
            pairs = [w.to(unary).expand_as(m) for w, m in zip(scores[1:], inside[1:], strict=True)]
        except RuntimeError as error:
            raise ValueError(f"{name} got right and down of shapes that do not fit the pairs: {error}") from error
        finite = (torch.where(u.isinf(), torch.nan, u) for u in (unary, *pairs))
        unary, *pairs = (torch.where(m, u, 0.0) for m, u in zip(inside, finite, strict=True))
        return (unary, *self._positive(name, pairs)), Image(y, inside)

    def _positive(self, name: str, weights: Any) -> list[Tensor]:
        """Weights ≥ 0, or an error."""
        problem = f"{name} got a pairwise score below 0, which is not submodular, so no cut is best"
        advice = "keep it positive (softplus), pass negative='project', or, if a solver's step made it, a smaller lr"
        for w in weights if self.exact else ():
            require(~(w < 0), f"{problem}: {advice}")
        return [w.clamp(min=0) for w in weights]

    def features(self, target: Image, scores: Any) -> tuple[Tensor, ...]:
        """φ: the label of each pixel, and for each pair whether the two agree."""
        z = target.labels
        agree = (z, z[:, :, :-1] == z[:, :, 1:], z[:, :-1] == z[:, 1:])
        return tuple((f * m).to(scores[0]) for f, m in zip(agree, target.inside, strict=True))

    def cost(self, target: Image, scores: Any, table: Tensor | None = None) -> tuple[Tensor | None, ...]:
        super().cost(target, scores, table)
        return ((1 - 2 * target.labels) * target.inside[0]).to(scores[0]), None, None

    def size(self, target: Image, scores: Any) -> Tensor:
        return target.inside[0].flatten(1).sum(1).to(scores[0])

    def labels(self, phi: Any, target: Image) -> Tensor:
        return phi[0].long()  # type: ignore[no-any-return]

    def best(self, scores: Any, target: Image) -> tuple[Tensor, ...]:
        arrays = [as_array(u) for u in (scores[0], *self._positive("Grid", scores[1:]))]
        found = [torch.from_numpy(self.cut(*each)) for each in zip(*arrays, strict=True)]
        labels = torch.stack(found).to(scores[0].device).long() * target.inside[0]
        return self.features(target._replace(labels=labels), scores)
