# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""One forward and one backward kernel over the rows of class scores, in Triton: hinge, smoothed hinge, cross-entropy.

Each program takes one row. Its atom is that of :mod:`proxsvm._kernels.class_loops`: s = α − e_y, with α a vertex of the
simplex or the softmax. The forward kernel keeps what the backward one needs to recompute α: the ``chosen`` class
(−1 for the softmax), the largest score and the sum of the exponentials. The last program to finish adds up the rows in
order, so every run gives the same bits.

This module imports triton (the extra ``gpu``): import it when a loss needs it.
"""

from __future__ import annotations

from proxsvm._kernels.class_rows import CROSS_ENTROPY, HINGE
from proxsvm._kernels.step_triton_kernels import tl, total, triton

language = tl
BLOCK = 1024  # scores of a row that a program holds in registers at a time
PLAIN, SOFT = tl.constexpr(HINGE), tl.constexpr(CROSS_ENTROPY)


@triton.jit
def rival(u, label, K, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """The largest u_k with k ≠ y, the first such k, and how many scores are NaN."""
    best, k, broken = tl.full([], float("-inf"), ACC), label, tl.full([], 0, tl.int32)
    for begin in range(0, K, BLOCK):
        j = begin + tl.arange(0, BLOCK)
        x = tl.load(u + j, mask=j < K, other=float("-inf"))
        broken += tl.sum((x != x).to(tl.int32))
        x = tl.where((j == label) | (x != x), float("-inf"), x)
        top = tl.max(x)
        first = tl.min(tl.where(x == top, j, K)).to(tl.int64)
        k = tl.where(top > best, first, k)
        best = tl.maximum(top, best)
    return best, k, broken


@triton.jit
def softmax(u, u_y, top, K, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """Σ exp(u_k − top), and Σ exp(u_k − top) (u_k − u_y); a masked class, u_k = −∞, adds nothing."""
    mass, mean = tl.zeros([BLOCK], ACC), tl.zeros([BLOCK], ACC)
    for begin in range(0, K, BLOCK):
        j = begin + tl.arange(0, BLOCK)
        x = tl.load(u + j, mask=j < K, other=float("-inf"))
        e = tl.where(x == float("-inf"), 0.0, tl.exp(x - top))
        mass += e
        mean += tl.where(e == 0, 0.0, e * (x - u_y))
    return tl.sum(mass), tl.sum(mean)


@triton.jit
def forward(
    u, y, weight, partial, ticket, value, out, chosen, tops, masses, K, ignore,
    ACC: tl.constexpr, KIND: tl.constexpr, MEAN: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Σ p b; the p of a weight of 1 and whether every class exists, into ``out``; and what :func:`backward` needs."""
    row = tl.program_id(0).to(tl.int64)
    y_ = tl.load(y + row)
    exists = (y_ >= 0) & (y_ < K)
    label = tl.where(exists, y_, 0)
    p = tl.where(exists & (y_ != ignore), 1.0, 0.0).to(ACC)
    if weight is not None:
        p *= tl.load(weight + label)
    u_y = tl.load(u + row * K + label)
    best, k, broken = rival(u + row * K, label, K, ACC, BLOCK)
    margin = best - u_y + 1.0
    b = tl.where(margin > 0, margin, 0.0).to(ACC)
    k = tl.where(margin > 0, k, label)
    if KIND != PLAIN:
        top = tl.maximum(best, u_y)
        mass, mean = softmax(u + row * K, u_y, top, K, ACC, BLOCK)
        if KIND == SOFT:
            b = (top - u_y) + tl.log(mass)
            k = tl.zeros_like(k) - 1
        else:
            soft = 1.0 + (mean - tl.exp(u_y - top)) / mass
            hard = soft <= 0  # the softmax cannot raise the dual: the hinge's own atom
            b = tl.where(hard, b, soft)
            k = tl.where(hard, k, -1)
        tl.store(tops + row, top)
        tl.store(masses + row, mass)
    b = tl.where(broken > 0, float("nan"), b)
    tl.store(chosen + row, k)
    tl.store(partial + 3 * row, tl.where(p > 0, p * b, 0.0).to(tl.float64))
    tl.store(partial + 3 * row + 1, p.to(tl.float64))
    tl.store(partial + 3 * row + 2, tl.where(exists | (y_ == ignore), 0.0, 1.0).to(tl.float64))
    tl.debug_barrier()
    rows = tl.num_programs(0)
    if tl.atomic_add(ticket, 1, sem="acq_rel") == rows - 1:
        sum_, share = total(partial, rows, 0, 3, ROWS), 1.0
        if MEAN:
            share = 1.0 / total(partial, rows, 1, 3, ROWS)
        tl.store(value, (sum_ * share).to(ACC))
        tl.store(out, share)
        tl.store(out + 1, (total(partial, rows, 2, 3, ROWS) == 0).to(ACC))
        tl.store(ticket, 0)


@triton.jit
def backward(
    grad, u, y, weight, out, chosen, tops, masses, s, K, ignore, ACC: tl.constexpr, KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """grad · p s of each row."""
    row = tl.program_id(0).to(tl.int64)
    y_, k = tl.load(y + row), tl.load(chosen + row)
    exists = (y_ >= 0) & (y_ < K) & (y_ != ignore)
    label = tl.where(exists, y_, 0)
    p = tl.where(exists, tl.load(grad).to(ACC) * tl.load(out), 0.0).to(ACC)
    if weight is not None:
        p *= tl.load(weight + label)
    counts = p != 0
    for begin in range(0, K, BLOCK):
        j = begin + tl.arange(0, BLOCK)
        alpha = tl.where(j == k, 1.0, 0.0).to(ACC)
        if KIND != PLAIN:
            x = tl.load(u + row * K + j, mask=j < K, other=float("-inf"))
            e = tl.exp(x - tl.load(tops + row)) / tl.load(masses + row)
            alpha = tl.where(k < 0, tl.where(x == float("-inf"), 0.0, e), alpha)
        alpha -= tl.where(j == label, 1.0, 0.0).to(ACC)
        tl.store(s + row * K + j, tl.where(counts, p * alpha, 0.0).to(ACC), mask=j < K)
