"""The structured hinge over binary images: every pixel has a label, and equal neighbours have a score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from proxsvm._kernels.tensors import Array
from proxsvm.losses._graph_cut import scipy_cut
from proxsvm.losses.base import Reduction, require
from proxsvm.losses.structured_hinge import StructuredHinge


class Image(NamedTuple):
    """A labelling of B images; pixels outside the mask do not exist."""

    labels: Tensor  # [B, H, W], 0 or 1
    mask: Tensor  # [B, H, W], bool
    weight: Tensor  # [B]: how much each pixel counts in Δ


class GridHinge(StructuredHinge):
    """ℓ(u; y) = max over binary images ȳ of score(ȳ) − score(y) + Δ(ȳ, y), by a minimum cut.

        score(y) = Σ_i unary_i y_i + Σ_(i,j) w_ij [y_i = y_j]          over 4-neighbours, w ≥ 0

    Any submodular pairwise score is of this form, up to a change of the unary ones.
    Scores: ``(unary, right, down)``, unary ``[B, H, W]``; right ``[B, H, W - 1]`` contains the w of each pixel and its
    right neighbour, down ``[B, H - 1, W]`` that of each pixel and the one below; both may be anything that expands to
    those shapes, such as one weight for all. A network keeps w ≥ 0 with a softplus, for example.
    Target: labels ``[B, H, W]`` in {0, 1}, or ``(labels, mask)`` with a bool mask that is False at pixels to leave out.
    NaN or infinite scores make the loss NaN, and the optimizer skips the step.

    Args:
        negative: what to do with w < 0, for which the best image cannot be found in general. ``"refuse"`` raises an
            error. ``"project"`` trains with max(w, 0) instead; a multi-step solver may still move the linearised w
            below zero, where the cut is computed for max(w, 0) and is then approximate (:attr:`exact` is False).
        cut: finds the image; :func:`~proxsvm.losses._graph_cut.scipy_cut` by default, or
            :func:`~proxsvm.losses._graph_cut.maxflow_cut`, which is faster.
        normalize: divide Δ, the number of wrong pixels, by the number of pixels.
        reduction: as in torch, see :class:`~proxsvm.losses.PiecewiseLinearLoss`.

    >>> unary = torch.tensor([[[2.0, -1.0], [2.0, 2.0]]])
    >>> GridHinge().decode((unary, torch.tensor(1.0), torch.tensor(1.0)))    # two agreements outweigh the -1
    tensor([[[1, 1],
             [1, 1]]])
    >>> GridHinge()((unary, torch.tensor(0.0), torch.tensor(0.0)), torch.tensor([[[1, 1], [1, 1]]]))
    tensor(2.)
    """

    def __init__(
        self,
        *,
        negative: Literal["refuse", "project"] = "refuse",
        cut: Callable[[Array, Array, Array], Array] = scipy_cut,
        normalize: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if negative not in ("refuse", "project"):
            raise ValueError(f"negative is {negative!r}; expected 'refuse' or 'project'")
        self.negative, self.cut, self.normalize = negative, cut, normalize
        self.exact = negative == "refuse"

    def prepare(self, scores: Any, target: Any) -> tuple[tuple[Tensor, Tensor, Tensor], Image]:
        """Check everything, expand the weights to one per pair, and set the scores outside the mask to zero."""
        if isinstance(target, Image):
            return scores, target  # already prepared
        name = type(self).__name__
        if not isinstance(scores, (tuple, list)) or len(scores) != 3:
            raise TypeError(f"{name} got a {type(scores).__name__} as scores; expected a tuple (unary, right, down)")
        (unary, right, down), _ = super().prepare(tuple(scores), None)
        if unary.dim() != 3 or min(unary.shape[1:]) < 2:
            raise ValueError(
                f"{name} got unary scores of shape {tuple(unary.shape)}; expected [B, H, W] with at least 2 × 2 pixels "
                "(a line of pixels is a chain: ChainHinge)"
            )
        B, H, W = unary.shape
        try:
            right, down = right.to(unary.dtype).expand(B, H, W - 1), down.to(unary.dtype).expand(B, H - 1, W)
        except RuntimeError as error:
            raise ValueError(
                f"{name} got right and down of shapes {tuple(right.shape)} and {tuple(down.shape)}; expected what "
                f"expands to ({B}, {H}, {W - 1}) and ({B}, {H - 1}, {W})"
            ) from error
        labels, mask = target if isinstance(target, (tuple, list)) else (target, None)
        image = self._image(labels, mask, unary)
        inside = _inside(image.mask)
        unary, right, down = (
            torch.where(m, torch.where(u.isinf(), torch.nan, u), 0.0)
            for m, u in zip(inside, (unary, right, down), strict=True)
        )
        if self.negative == "project":
            right, down = right.clamp(min=0), down.clamp(min=0)
        self._refuse_negative(right.detach(), down.detach())
        return (unary, right, down), image

    def _image(self, labels: Any, mask: Any, unary: Tensor) -> Image:
        name, shape = type(self).__name__, tuple(unary.shape)
        if not isinstance(labels, Tensor) or labels.is_floating_point():
            raise TypeError(f"{name} got labels that are not an integer tensor; expected 0 and 1 (torch.long or bool)")
        if tuple(labels.shape) != shape:
            raise ValueError(f"{name} got labels of shape {tuple(labels.shape)}; expected that of the unary, {shape}")
        if mask is None:
            mask = torch.ones(shape, dtype=torch.bool, device=unary.device)
        elif not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != shape:
            given = f"{tuple(mask.shape)}, {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"{name} got a mask of {given}; expected {shape}, torch.bool")
        require(mask.flatten(1).any(1), f"{name} got an image without any pixel in its mask: leave it out")
        labels = torch.where(mask, labels.long(), 0)
        require((labels == 0) | (labels == 1), f"{name} got a label that is not 0 or 1 (leave out pixels with a mask)")
        size = mask.flatten(1).sum(1).to(unary)
        return Image(labels, mask, 1 / size if self.normalize else torch.ones_like(size))

    def _refuse_negative(self, right: Tensor, down: Tensor) -> None:
        if self.exact:
            require(
                ~(right < 0).any() & ~(down < 0).any(),
                f"{type(self).__name__} got a pairwise score below 0, which is not submodular: no cut finds the best "
                "image. Keep the weights positive (softplus), or pass negative='project'. (If only a multi-step "
                "solver meets this, its step makes a weight negative: a smaller lr helps)",
            )

    def features(self, labelling: Image, scores: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """φ: the label of each pixel, and for each pair whether the two agree."""
        z = labelling.labels
        agree = (z, z[:, :, :-1] == z[:, :, 1:], z[:, :-1] == z[:, 1:])
        node, right, down = ((f * m).to(scores[0]) for f, m in zip(agree, _inside(labelling.mask), strict=True))
        return node, right, down

    def cost(self, labelling: Image, target: Image) -> Tensor:
        """Δ: the number of wrong pixels, or their share."""
        return ((labelling.labels != target.labels) & target.mask).flatten(1).sum(1) * target.weight

    def decode(self, scores: Any, target: Any = None) -> Any:
        """The best images ``[B, H, W]``: a prediction, or with a target the loss-augmented ones."""
        blank = torch.zeros_like(scores[0], dtype=torch.long)
        prepared, image = self.prepare(scores, blank if target is None else target)
        return self._best(prepared, image, augmented=target is not None).labels

    def _best(self, scores: tuple[Tensor, Tensor, Tensor], target: Image, *, augmented: bool = True) -> Image:
        unary, right, down = (u.detach() for u in scores)
        self._refuse_negative(right, down)
        if augmented:
            unary = unary + (1 - 2 * target.labels) * target.weight[:, None, None]  # what label 1 adds to Δ
        unary, right, down = (u * m for u, m in zip((unary, right, down), _inside(target.mask), strict=True))
        # Where a score is NaN, so is the loss, whatever the cut.
        arrays = [u.double().nan_to_num().cpu().numpy() for u in (unary, right.clamp(min=0), down.clamp(min=0))]
        found = [torch.from_numpy(self.cut(*each)) for each in zip(*arrays, strict=True)]
        labels = torch.stack(found).to(unary.device).long()
        return target._replace(labels=labels * target.mask)

    def extra_repr(self) -> str:
        """With the options."""
        return f"negative={self.negative!r}, " + ("normalize=True, " if self.normalize else "") + super().extra_repr()


def _inside(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which pixels, horizontal pairs and vertical pairs are inside the mask."""
    return mask, mask[:, :, :-1] & mask[:, :, 1:], mask[:, :-1] & mask[:, 1:]
