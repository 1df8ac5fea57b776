"""Batched Viterbi against loops over the sequences, and how its cost grows."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.common import Options, interleaved, ratio, write
from proxsvm.losses import ChainHinge

chain = ChainHinge()


def batched(unary: Tensor, transition: Tensor) -> Tensor:
    """All sequences at once: ``ChainHinge().decode``, with all its checks."""
    return chain.decode((unary, transition))


def one_by_one(unary: Tensor, transition: Tensor) -> Tensor:
    """The same decoder, called for each sequence."""
    return torch.cat([chain.decode((u[None], transition)) for u in unary])


def plain_loop(unary: Tensor, transition: Tensor) -> Tensor:
    """The textbook Viterbi for each sequence in torch, vectorised over pairs of states and without any checks."""
    found = []
    for u in unary:
        alpha, back = u[0], []
        for t in range(1, len(u)):
            best, arg = (alpha[:, None] + transition).max(0)
            alpha = best + u[t]
            back.append(arg)
        y = [int(alpha.argmax())]
        for arg in reversed(back):
            y.append(int(arg[y[-1]]))
        found.append(y[::-1])
    return torch.tensor(found)


def main(options: Options) -> None:
    torch.manual_seed(0)
    cases = {"64 sequences of length 50, 26 states": (64, 50, 26)}
    cases |= {"twice the length": (64, 100, 26), "twice the states": (64, 50, 52), "twice the batch": (128, 50, 26)}
    rows = []
    for title, (B, T, K) in cases.items():
        given = torch.randn(B, T, K), torch.randn(K, K)
        assert torch.equal(batched(*given), plain_loop(*given))
        runs = {f.__name__: lambda f=f, given=given: f(*given) for f in (batched, one_by_one, plain_loop)}
        times = interleaved(runs, options.rounds(15, quick=3), warm_up=1)
        ratios = {f"{name} / batched": ratio(times, name, "batched") for name in ("one_by_one", "plain_loop")}
        rows.append({"what": title, "batched, ms": 1e3 * times["batched"].median, **ratios})
    write(options, "viterbi", rows, "The best labelling of chains, by ChainHinge().decode and by loops over them.")
