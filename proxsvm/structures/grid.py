"""Binary images: every pixel is 0 or 1, and equal neighbours have a score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from proxsvm._extras import load
from proxsvm._scores import detached, inner, require, widened
from proxsvm.structures.base import Reduce, Structure, maximum

Array: TypeAlias = "np.ndarray[Any, Any]"


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
    weight = np.zeros(gain.shape)
    weight[:, :-1] += right
    weight[:, 1:] += right
    weight[:-1] += down
    weight[1:] += down
    V, limit = gain.size, np.clip(gain, -weight, weight)
    at = np.arange(V).reshape(gain.shape)
    a = np.concatenate([at[:, :-1].ravel(), at[:-1].ravel()])
    b = np.concatenate([at[:, 1:].ravel(), at[1:].ravel()])
    w = np.concatenate([right.ravel(), down.ravel()])
    pixel, source, sink = at.ravel(), np.full(V, V), np.full(V, V + 1)
    tail = np.concatenate([source, pixel, pixel, sink, a, b])
    head = np.concatenate([pixel, source, sink, pixel, b, a])
    rise, fall, none = np.maximum(limit, 0).ravel(), np.maximum(-limit, 0).ravel(), np.zeros(V)
    left = np.concatenate([rise, none, fall, none, w, w])  # what each arc can still carry
    flow = left_over = min(rise.sum(), fall.sum())  # the largest flow, and the largest that may be missing
    while left_over > 1e-12 * flow:
        scale = (2**31 - 1) / (4 * left_over)  # residuals are sums of capacities
        whole = np.floor(np.minimum(left, 2 * left_over) * scale).astype(np.int32)
        graph = sparse.csr_matrix((whole, (tail, head)), shape=(V + 2, V + 2))
        moved = csgraph.maximum_flow(graph, V, V + 1).flow[tail, head]
        left = np.maximum(left - np.asarray(moved).ravel() / scale, 0.0)
        left_over = min(len(tail) / scale, left_over / 2)
    open_arcs = left > 1e-12 * max(flow, 1e-300)
    residual = sparse.csr_matrix((open_arcs[open_arcs], (tail[open_arcs], head[open_arcs])), shape=(V + 2, V + 2))
    reached = np.zeros(V + 2, dtype=bool)
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
        labels, mask = target if isinstance(target, (tuple, list)) else (target, None)
        image = self._image(name, labels, mask, unary)
        unary, right, down = (
            torch.where(m, torch.where(u.isinf(), torch.nan, u), 0.0)
            for m, u in zip(image.inside(), (unary, right, down), strict=True)
        )
        if self.negative == "project":
            right, down = right.clamp(min=0), down.clamp(min=0)
        self._refuse_negative(name, right.detach(), down.detach())
        return (unary, right, down), image

    def _image(self, name: str, labels: Any, mask: Any, unary: Tensor) -> Image:
        shape = tuple(unary.shape)
        if labels is None:
            labels = torch.zeros(shape, dtype=torch.long, device=unary.device)
        if not isinstance(labels, Tensor) or labels.is_floating_point():
            raise TypeError(f"{name} got labels that are not an integer tensor; expected 0 and 1 (torch.long or bool)")
        if tuple(labels.shape) != shape:
            raise ValueError(f"{name} got labels of shape {tuple(labels.shape)}; expected that of the unary, {shape}")
        if mask is None:
            mask = torch.ones(shape, dtype=torch.bool, device=unary.device)
        elif not isinstance(mask, Tensor) or mask.dtype not in (torch.bool, torch.uint8) or tuple(mask.shape) != shape:
            given = f"{tuple(mask.shape)}, {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"{name} got a mask of {given}; expected {shape}, torch.bool")
        mask = mask.bool()
        require(mask.flatten(1).any(1), f"{name} got an image without any pixel in its mask: leave it out")
        labels = torch.where(mask, labels.long(), 0)
        require((labels == 0) | (labels == 1), f"{name} got a label that is not 0 or 1 (leave out pixels with a mask)")
        return Image(labels, mask)

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
        if table is not None:
            raise ValueError("Grid counts wrong pixels; expected cost=None")
        return ((1 - 2 * target.labels) * target.mask).to(scores[0]), None, None

    def size(self, target: Image, scores: Any) -> Tensor:
        """The number of pixels."""
        return target.mask.flatten(1).sum(1).to(scores[0])

    def labels(self, phi: Any, target: Image) -> Tensor:
        """The image ``[B, H, W]``."""
        labels: Tensor = phi[0].long()
        return labels

    def best(self, scores: Any, target: Image) -> tuple[Tensor, ...]:
        """By a cut of each image, on the CPU."""
        unary, right, down = (u.detach() for u in scores)
        self._refuse_negative("Grid", right, down)
        # Where a score is NaN, so is the loss, whatever the cut.
        arrays = [u.double().nan_to_num().cpu().numpy() for u in (unary, right.clamp(min=0), down.clamp(min=0))]
        found = [torch.from_numpy(self.cut(*each)) for each in zip(*arrays, strict=True)]
        labels = torch.stack(found).to(unary.device).long() * target.mask
        return self.features(target._replace(labels=labels), scores)

    def total(self, scores: Any, target: Image, reduce: Reduce) -> Tensor:
        """The score of the best image; there is no sum over all of them."""
        assert reduce is maximum
        return inner(self.best(detached(scores), target), scores)
