# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The two kernels of a step, in Triton: one launch each for all tensors of a dtype and device.

``chunks``, ``[C, 3]``: each program's tensor, first element and number of elements; ``addresses``, ``[6, n]``: those
of all w, x, v, z, averages and starts, 0 where there is none. A scalar is a constant, given by the bits of a float64
(Triton turns a float into a float32), times the value at an address, if there is one.

The sums of each program are stored, and added up by the last one to finish, in the order of the chunks: every run gives
the same bits.

This module imports triton (the extra ``gpu``): import it when a step needs it.
"""

from __future__ import annotations

from typing import Any

from proxsvm._extras import load
from proxsvm._kernels import step_triton

triton: Any = load("triton", extra="gpu")
tl: Any = load("triton.language", extra="gpu")

BLOCK = 1024  # elements that a program holds in registers at a time
KEY = tl.constexpr(step_triton.KEY)
CONSTANTS = ["beta2", "rest", "eps", "correction", "scale", "push", "lift", "drop", "mu", "rate"]


@triton.jit
def scalar(bits, at, ACC: tl.constexpr):
    """A constant, times the value at an address, if there is one."""
    constant = (bits ^ KEY).to(tl.float64, bitcast=True).to(ACC)
    if at is None:
        return constant
    else:
        return constant * tl.load(at).to(ACC)


@triton.jit
def pointer(addresses, k, first, DTYPE: tl.constexpr):
    """A pointer to element ``first`` of tensor k."""
    return tl.load(addresses + k).to(tl.pointer_type(DTYPE)) + first


@triton.jit
def total(partial, count, which, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Σ of one column of a table ``[count, WIDTH]``."""
    sums = tl.zeros([BLOCK], tl.float64)
    for begin in range(0, count, BLOCK):
        k = begin + tl.arange(0, BLOCK)
        sums += tl.load(partial + WIDTH * k + which, mask=k < count, other=0.0, volatile=True)
    return tl.sum(sums)


@triton.jit(do_not_specialize=CONSTANTS)
def products(
    chunks, addresses, n, partial, ticket, out, beta2, rest, eps, correction, correction_at, scale, scale_at,
    ACC: tl.constexpr, W: tl.constexpr, X: tl.constexpr, V: tl.constexpr, START: tl.constexpr, WITH_W: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """⟨x, M⁻¹x⟩, ⟨w, x⟩, ⟨w, M w⟩ and ⟨u, M u⟩ with u = w − start; V and START are None where there are none."""
    pid = tl.program_id(0)
    i, first = tl.load(chunks + 3 * pid), tl.load(chunks + 3 * pid + 1)
    count = tl.load(chunks + 3 * pid + 2).to(tl.int32)
    w, x = pointer(addresses, i, first, W), pointer(addresses, n + i, first, X)
    if V is not None:
        v = pointer(addresses, 2 * n + i, first, V)
        beta2_, rest_, eps_ = scalar(beta2, None, ACC), scalar(rest, None, ACC), scalar(eps, None, ACC)
        correction_, scale_ = scalar(correction, correction_at, ACC), scalar(scale, scale_at, ACC)
    if START is not None:
        start = pointer(addresses, 5 * n + i, first, START)
    xx, wx = tl.zeros([BLOCK], ACC), tl.zeros([BLOCK], ACC)
    ww, uu = tl.zeros([BLOCK], ACC), tl.zeros([BLOCK], ACC)
    for begin in range(0, count, BLOCK):
        j = begin + tl.arange(0, BLOCK)
        inside = j < count
        x_ = tl.load(x + j, mask=inside, other=0.0).to(ACC)
        if V is not None:
            g = scale_ * x_
            moment = beta2_ * tl.load(v + j, mask=inside, other=0.0).to(ACC) + rest_ * g * g
            M = tl.sqrt(correction_ * moment) + eps_
            xx += x_ * x_ / M
        else:
            xx += x_ * x_
        if WITH_W or START is not None:
            w_ = tl.load(w + j, mask=inside, other=0.0).to(ACC)
            if WITH_W:
                wx += w_ * x_
                ww += w_ * w_ * M if V is not None else w_ * w_
            if START is not None:
                u = w_ - tl.load(start + j, mask=inside, other=0.0).to(ACC)
                uu += u * u * M if V is not None else u * u
    own = partial + 4 * pid
    tl.store(own, tl.sum(xx).to(tl.float64))
    tl.store(own + 1, tl.sum(wx).to(tl.float64))
    tl.store(own + 2, tl.sum(ww).to(tl.float64))
    tl.store(own + 3, tl.sum(uu).to(tl.float64))
    finish(partial, ticket, out, ACC, BLOCK)


@triton.jit
def finish(partial, ticket, out, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """The last program to arrive adds up the sums of all, and resets the ticket."""
    tl.debug_barrier()
    programs = tl.num_programs(0)
    if tl.atomic_add(ticket, 1, sem="acq_rel") == programs - 1:
        tl.store(out, total(partial, programs, 0, 4, BLOCK).to(ACC))
        tl.store(out + 1, total(partial, programs, 1, 4, BLOCK).to(ACC))
        tl.store(out + 2, total(partial, programs, 2, 4, BLOCK).to(ACC))
        tl.store(out + 3, total(partial, programs, 3, 4, BLOCK).to(ACC))
        tl.store(ticket, 0)


@triton.jit(do_not_specialize=CONSTANTS)
def advance(
    chunks, addresses, n, skip, push, push_at, lift, lift_at, drop, drop_at, mu, rate, rate_at,
    beta2, rest, eps, correction, correction_at, scale, scale_at,
    ACC: tl.constexpr, W: tl.constexpr, X: tl.constexpr, V: tl.constexpr, Z: tl.constexpr, AVERAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The update; V, Z and AVERAGE are None where there are none. Where ``skip`` holds, nothing is written."""
    moves = True if skip is None else tl.load(skip) == 0
    if moves:
        pid = tl.program_id(0)
        i, first = tl.load(chunks + 3 * pid), tl.load(chunks + 3 * pid + 1)
        count = tl.load(chunks + 3 * pid + 2).to(tl.int32)
        push_, lift_ = scalar(push, push_at, ACC), scalar(lift, lift_at, ACC)
        drop_, mu_, rate_ = scalar(drop, drop_at, ACC), scalar(mu, None, ACC), scalar(rate, rate_at, ACC)
        beta2_, rest_, eps_ = scalar(beta2, None, ACC), scalar(rest, None, ACC), scalar(eps, None, ACC)
        correction_, scale_ = scalar(correction, correction_at, ACC), scalar(scale, scale_at, ACC)
        for begin in range(0, count, BLOCK):
            j = begin + tl.arange(0, BLOCK)
            inside = j < count
            w = pointer(addresses, i, first, W) + j
            w_ = tl.load(w, mask=inside, other=0.0).to(ACC)
            x_ = tl.load(pointer(addresses, n + i, first, X) + j, mask=inside, other=0.0).to(ACC)
            step = push_ * x_
            if V is not None:
                v = pointer(addresses, 2 * n + i, first, V) + j
                g = scale_ * x_
                moment = beta2_ * tl.load(v, mask=inside, other=0.0).to(ACC) + rest_ * g * g
                tl.store(v, moment.to(V), mask=inside)
                step = step / (tl.sqrt(correction_ * moment) + eps_)
            change = drop_ * w_ + step
            if Z is not None:
                z = pointer(addresses, 3 * n + i, first, Z) + j
                z_ = mu_ * tl.load(z, mask=inside, other=0.0).to(ACC) - step - lift_ * w_
                tl.store(z, z_.to(Z), mask=inside)
                change -= mu_ * z_.to(Z).to(ACC)
            w_ = (w_ - change).to(W)
            tl.store(w, w_, mask=inside)
            if AVERAGE is not None:
                average = pointer(addresses, 4 * n + i, first, AVERAGE) + j
                mean = tl.load(average, mask=inside, other=0.0).to(ACC)
                tl.store(average, (mean - rate_ * (mean - w_.to(ACC))).to(AVERAGE), mask=inside)
