"""The best labelling by combinatorial algorithms, on float64 arrays of one sample: cuts, spanning trees, matchings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array
from proxsvm._scores import FORBIDDEN

Cut: TypeAlias = "Callable[[Array, Array, Array], Array]"


def as_array(u: Tensor) -> Array:
    """Scores as float64 on the CPU, in which NaN is 0: the loss is NaN whatever labelling is found."""
    return np.asarray(u.detach().double().nan_to_num(posinf=-FORBIDDEN).cpu().numpy())


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


def best_heads(scores: Array) -> Array:
    """The heads of the words of the best tree with one child of the root, for scores ``[T + 1, T + 1]``.

    >>> best_heads(np.array([[0.0, 2.0, 2.5], [0.0, 0.0, 3.0], [0.0, 2.0, 0.0]]))      # 2 + 3, and not 2.5 + 2
    array([0, 1])
    """
    N = len(scores)
    s, spread = lowered(scores, 2 * N**2)
    np.fill_diagonal(s, -np.inf)
    s[:, 0] = -np.inf
    s[0, 1:] -= N * spread  # a second child of the root costs more than any other arc gains
    return _arborescence(s)[1:]


def _arborescence(s: Array) -> Array:
    """The best head of every node, −1 of the root 0: take the best arcs, contract a cycle, and repeat."""
    heads = s.argmax(0)
    heads[0] = -1
    cycle = _cycle(heads)
    if cycle is None:
        return np.asarray(heads)
    outside = np.setdiff1d(np.arange(len(s)), cycle)
    # The cycle is one node, last: an arc into it replaces the arc of its word, an arc out of it has the best tail.
    into = s[np.ix_(outside, cycle)] - s[heads[cycle], cycle]
    out = s[np.ix_(cycle, outside)]
    smaller = np.full((len(outside) + 1,) * 2, -np.inf)
    smaller[:-1, :-1], smaller[:-1, -1], smaller[-1, :-1] = s[np.ix_(outside, outside)], into.max(1), out.max(0)
    found = _arborescence(smaller)
    entry = cycle[into.argmax(1)[found[-1]]]
    tails = np.append(outside, -1)[found[:-1]]
    of_cycle = found[:-1] == len(outside)
    tails[of_cycle] = cycle[out.argmax(0)[of_cycle]]
    tails[0] = -1
    heads[outside], heads[entry] = tails, outside[found[-1]]
    return np.asarray(heads)


def _cycle(heads: Array) -> Array | None:
    """The nodes of a cycle of heads, or None."""
    up = np.maximum(heads, 0)
    for _ in range(len(heads).bit_length()):  # every pass doubles the number of arcs that are climbed
        up = up[up]
    if not up.any():
        return None
    cycle = [up.max()]  # climbed so far that it is on a cycle
    while heads[cycle[-1]] != cycle[0]:
        cycle.append(heads[cycle[-1]])
    return np.array(cycle)


def lowered(u: Array, n: int) -> tuple[Array, float]:
    """``u`` with forbidden entries so low that no n of the others are worth one, and more than the others' range."""
    usual = u[u > FORBIDDEN / 2]
    low, high = (usual.min(), usual.max()) if len(usual) else (0.0, 0.0)
    spread = float(high - low + 1)
    return np.where(u > FORBIDDEN / 2, u, low - (n + 1) * spread), spread
