"""Minimum cuts of image grids: two ways to find the best binary labelling of one image.

    max over z in {0, 1}^(H×W) of  Σ_i gain_i z_i + Σ_(i,j) w_ij [z_i = z_j]          w ≥ 0

Each function takes gain ``[H, W]``, right ``[H, W - 1]`` and down ``[H - 1, W]`` as float64 arrays, the w of horizontal
and vertical neighbours, and returns z as a bool array.
"""

from __future__ import annotations

import numpy as np

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array

_LARGEST = 2**31 - 1  # scipy's flows are 32-bit integers


def scipy_cut(gain: Array, right: Array, down: Array) -> Array:
    """By ``scipy.sparse.csgraph.maximum_flow``, whose capacities are 32-bit integers.

    Capacities are scaled so that four times the largest possible flow F still fits (residuals are sums of capacities),
    and rounded. A cut through V pixels and E pairs is off by at most half a unit each, so the labelling found is at
    most (V + E)·4F/2³¹ worse than the best: for 90 × 120 pixels 6e-5 of F, the smaller of the two sums of gains.

    >>> scipy_cut(np.array([[3.0, -1.0]]), np.array([[2.0]]), np.zeros((0, 2)))
    array([[ True,  True]])
    """
    sparse, csgraph = load("scipy.sparse", extra="grid"), load("scipy.sparse.csgraph", extra="grid")
    most = min(np.maximum(gain, 0).sum(), np.maximum(-gain, 0).sum())
    if most == 0:
        return np.full(gain.shape, bool(gain.sum() > 0))  # all gains have the same sign
    scale = _LARGEST / (4 * most)

    def whole(x: Array) -> Array:  # a capacity above F has the same effect as an infinite one
        return np.asarray(np.rint(np.minimum(x, 2 * most) * scale), dtype=np.int32)

    V = gain.size
    at = np.arange(V).reshape(gain.shape)
    source, sink = np.full(V, V), np.full(V, V + 1)
    a = np.concatenate([at[:, :-1].ravel(), at[:-1].ravel()])
    b = np.concatenate([at[:, 1:].ravel(), at[1:].ravel()])
    w = whole(np.concatenate([right.ravel(), down.ravel()]))
    tail = np.concatenate([source, at.ravel(), a, b])
    head = np.concatenate([at.ravel(), sink, b, a])
    capacity = np.concatenate([whole(np.maximum(gain, 0).ravel()), whole(np.maximum(-gain, 0).ravel()), w, w])
    keep = capacity > 0
    graph = sparse.csr_matrix((capacity[keep], (tail[keep], head[keep])), shape=(V + 2, V + 2))
    residual = graph.astype(np.int64) - csgraph.maximum_flow(graph, V, V + 1).flow
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    reached = np.zeros(V + 2, dtype=bool)
    reached[csgraph.breadth_first_order(residual, V, return_predecessors=False)] = True
    return np.asarray(reached[:V].reshape(gain.shape))


def maxflow_cut(gain: Array, right: Array, down: Array) -> Array:
    """By PyMaxflow (Boykov and Kolmogorov's algorithm), in floating point: faster, but under the GPL.

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
