"""Binary images: every pixel is 0 or 1, and equal neighbours have a score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxsvm._extras import load
from proxsvm._scores import integer_target, require, widened
from proxsvm.structures._parts import Array, unpack
from proxsvm.structures.base import Structure


class Image(NamedTuple):
    """The labels of B images, ``[B, H, W]``; pixels outside the mask do not exist."""

    labels: Tensor
    mask: Tensor

    def inside(self) -> tuple[Tensor, Tensor, Tensor]:
        """Which pixels, horizontal pairs and vertical pairs are inside the mask."""
        m = self.mask
        return m, m[:, :, :-1] & m[:, :, 1:], m[:, :-1] & m[:, 1:]


def scipy_cut(gain: Array, right: Array, down: Array) -> Array:
    """argmax over z in {0, 1}^(H×W) of Σ_i gain_i z_i + Σ_(i,j) w_ij [z_i = z_j], by scipy's maximum flow.

    gain ``[H, W]``, right ``[H, W - 1]`` and down ``[H - 1, W]`` are float64 arrays, the w ≥ 0 of neighbours; z is an
    array of bool. A pixel whose gain is at least the sum of its weights decides by itself, and gains beyond that sum
    make no difference to the others. scipy's capacities are 32-bit integers: the flow is found in rounds, each on what
    the rounding of the last one left, until less than 1e-12 of it can be missing.

    >>> scipy_cut(np.array([[3.0, -1.0]]), np.array([[2.0]]), np.zeros((0, 2)))
    array([[ True,  True]])
    """
    sparse, csgraph = load("scipy.sparse", extra="grid"), load("scipy.sparse.csgraph", extra="grid")
    V, pixel = gain.size, np.arange(gain.size).reshape(gain.shape)
    a = np.concatenate([pixel[:, :-1].ravel(), pixel[:-1].ravel()])
    b = np.concatenate([pixel[:, 1:].ravel(), pixel[1:].ravel()])
    w = np.concatenate([right.ravel(), down.ravel()])
    weight = (np.bincount(a, w, V) + np.bincount(b, w, V)).reshape(gain.shape)
    limit = np.clip(gain, -weight, weight).ravel()
    rise, fall, none = np.maximum(limit, 0), np.maximum(-limit, 0), np.zeros(V)
    source, sink, inner = np.full(V, V), np.full(V, V + 1), pixel.ravel()
    tail = np.concatenate([source, inner, inner, sink, a, b])
    head = np.concatenate([inner, source, sink, inner, b, a])
    left = np.concatenate([rise, none, fall, none, w, w])  # what each arc can still carry
    flow = left_over = min(rise.sum(), fall.sum())  # the largest flow, and the largest that may be missing

    def graph(arcs: Array, values: Array) -> Any:
        return sparse.csr_matrix((values, (tail[arcs], head[arcs])), shape=(V + 2, V + 2))

    every = np.arange(len(tail))
    while left_over > 1e-12 * flow:
        scale = (2**31 - 1) / (4 * left_over)  # residuals are sums of capacities
        whole = np.floor(np.minimum(left, 2 * left_over) * scale).astype(np.int32)
        moved = csgraph.maximum_flow(graph(every, whole), V, V + 1).flow[tail, head]
        left = np.maximum(left - np.asarray(moved).ravel() / scale, 0.0)
        left_over = min(len(tail) / scale, left_over / 2)
    open_arcs = np.flatnonzero(left > 1e-12 * max(flow, 1e-300))
    reached = np.zeros(V + 2, dtype=bool)
    residual = graph(open_arcs, np.ones(len(open_arcs)))
    reached[csgraph.breadth_first_order(residual, V, return_predecessors=False)] = True
    return np.asarray(np.where(np.abs(gain) >= weight, gain > 0, reached[:V].reshape(gain.shape)))


def maxflow_cut(gain: Array, right: Array, down: Array) -> Array:
    """The same by PyMaxflow (Boykov and Kolmogorov's algorithm), in floating point: faster, but under the GPL.

    Install it with ``pip install '.[maxflow]'`` in the source folder, and pass ``GridHinge(cut=maxflow_cut)``.
    """
    maxflow = load("maxflow", extra="maxflow")
    graph = maxflow.Graph[float](gain.size, 2 * gain.size)
    nodes = graph.add_grid_nodes(gain.shape)
    to_right, below = np.zeros(gain.shape), np.zeros(gain.shape)
    to_right[:, :-1], below[:-1] = right, down
    graph.add_grid_edges(nodes, to_right, structure=np.array([[0, 0, 0], [0, 0, 1], [0, 0, 0]]), symmetric=True)
    graph.add_grid_edges(nodes, below, structure=np.array([[0, 0, 0], [0, 0, 0], [0, 1, 0]]), symmetric=True)
    graph.add_grid_tedges(nodes, np.maximum(gain, 0), np.maximum(-gain, 0))
    graph.maxflow()
    return np.asarray(~graph.get_grid_segments(nodes))  # a segment is True on the sink's side


class Grid(Structure):
    """score(y) = Σ_i unary_i y_i + Σ_(i,j) w_ij [y_i = y_j] over 4-neighbours, w ≥ 0; the best image is a minimum cut.

    Any submodular pairwise score is of this form, up to a change of the unary ones.
    Scores: ``(unary, right, down)``, unary ``[B, H, W]``; right ``[B, H, W - 1]`` contains the w of each pixel and its
    right neighbour, down ``[B, H - 1, W]`` that of each pixel and the one below; both may be anything that expands to
    those shapes, such as one weight for all. A network keeps w ≥ 0 with a softplus, for example.
    Target: labels ``[B, H, W]`` in {0, 1}, or ``(labels, mask)`` with a bool mask that is False at pixels to leave out.
    NaN or infinite scores make the loss NaN, and the optimizer skips the step.

    Args:
        negative: what to do with w < 0, for which the best image cannot be found in general. ``"refuse"`` raises an
            error. ``"project"`` trains with max(w, 0) instead; a multi-step solver may still move the linearised w
            below zero, where the cut is computed for max(w, 0) and is then approximate (``exact`` is False).
        cut: finds the image; :func:`scipy_cut` or :func:`maxflow_cut`, which is faster.
    """

    likelihood = False

    def __init__(
        self,
        *,
        negative: Literal["refuse", "project"] = "refuse",
        cut: Callable[[Array, Array, Array], Array] = scipy_cut,
    ) -> None:
        if negative not in ("refuse", "project"):
            raise ValueError(f"negative is {negative!r}; expected 'refuse' or 'project'")
        self.negative, self.cut, self.exact = negative, cut, negative == "refuse"

    def prepare(  # type: ignore[override]
        self, name: str, scores: Any, target: Any
    ) -> tuple[Any, Image]:
        """Expand the weights to one per pair, and set the scores outside the mask to zero."""
        if not isinstance(scores, (tuple, list)) or len(scores) != 3:
            raise TypeError(f"{name} got a {type(scores).__name__} as scores; expected a tuple (unary, right, down)")
        unary, right, down = (widened(u) for u in scores)
        if unary.dim() != 3 or unary.numel() == 0 or min(unary.shape[1:]) < 2:
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
        image = _image(name, *unpack(target, None), unary)
        unary, right, down = (
            torch.where(m, torch.where(u.isinf(), torch.nan, u), 0.0)
            for m, u in zip(image.inside(), (unary, right, down), strict=True)
        )
        if self.negative == "project":
            right, down = right.clamp(min=0), down.clamp(min=0)
        self._refuse_negative(name, right.detach(), down.detach())
        return (unary, right, down), image

    def _refuse_negative(self, name: str, right: Tensor, down: Tensor) -> None:
        if self.exact:
            require(
                ~(right < 0).any() & ~(down < 0).any(),
                f"{name} got a pairwise score below 0, which is not submodular: no cut finds the best image. Keep the "
                "weights positive (softplus), or pass negative='project'. (If only a multi-step solver meets this, "
                "its step makes a weight negative: a smaller lr helps)",
            )

    def features(self, target: Image, scores: Any) -> tuple[Tensor, ...]:
        """φ: the label of each pixel, and for each pair whether the two agree."""
        z = target.labels
        agree = (z, z[:, :, :-1] == z[:, :, 1:], z[:, :-1] == z[:, 1:])
        return tuple((f * m).to(scores[0]) for f, m in zip(agree, target.inside(), strict=True))

    def cost(self, target: Image, scores: Any, table: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """Δ: the number of wrong pixels."""
        super().cost(target, scores, table)
        return ((1 - 2 * target.labels) * target.mask).to(scores[0]), None, None

    def size(self, target: Image, scores: Any) -> Tensor:
        """The number of pixels."""
        return target.mask.flatten(1).sum(1).to(scores[0])

    def labels(self, phi: Any, target: Image) -> Tensor:
        """The image ``[B, H, W]``."""
        return phi[0].long()  # type: ignore[no-any-return]

    def best(self, scores: Any, target: Image) -> tuple[Tensor, ...]:
        """By a cut of each image, on the CPU."""
        unary, right, down = (u.detach() for u in scores)
        self._refuse_negative("Grid", right, down)
        # Where a score is NaN, so is the loss, whatever the cut.
        arrays = [u.double().nan_to_num().cpu().numpy() for u in (unary, right.clamp(min=0), down.clamp(min=0))]
        found = [torch.from_numpy(self.cut(*each)) for each in zip(*arrays, strict=True)]
        labels = torch.stack(found).to(unary.device).long() * target.mask
        return self.features(target._replace(labels=labels), scores)


def _image(name: str, labels: Any, mask: Any, unary: Tensor) -> Image:
    """Labels, all 0 if None, and the mask, everything if None, checked."""
    if labels is None:
        labels = torch.zeros_like(unary, dtype=torch.long)
    if mask is None:
        mask = torch.ones_like(unary, dtype=torch.bool)
    mask = integer_target(name, mask, unary.shape, "a mask").bool()
    require(mask.flatten(1).any(1), f"{name} got an image without any pixel in its mask: leave it out")
    labels = torch.where(mask, integer_target(name, labels, unary.shape, "labels"), 0)
    require((labels == 0) | (labels == 1), f"{name} got a label that is not 0 or 1 (leave out pixels with a mask)")
    return Image(labels, mask)
