"""Batched Viterbi against loops over the sequences, in one run, and how its cost grows.

    python -m benchmarks.viterbi

Every time is CPU time, the median over interleaved repetitions on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor
from tqdm import tqdm

from proxsvm.losses import ChainHinge
from proxsvm.losses._max_sum import best_labelling

chain = ChainHinge()


def viterbi(unary: Tensor, transition: Tensor) -> Tensor:
    """All sequences at once: the algorithm alone."""
    B, T, K = unary.shape
    return best_labelling(unary, transition.expand(B, T - 1, K, K))


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


def seconds(calls: dict[str, Callable[[], Tensor]], repetitions: int = 15) -> dict[str, float]:
    """The median time of each call, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in tqdm(range(repetitions), leave=False):
        for name, call in calls.items():
            began = time.process_time()
            call()
            times[name].append(time.process_time() - began)
    return {name: median(t[1:]) for name, t in times.items()}


def draw(B: int, T: int, K: int) -> tuple[Tensor, Tensor]:
    return torch.randn(B, T, K), torch.randn(K, K)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    given = draw(64, 50, 26)
    assert torch.equal(batched(*given), plain_loop(*given))
    found = seconds({f.__name__: lambda f=f: f(*given) for f in (viterbi, batched, one_by_one, plain_loop)})
    print("64 sequences of length 50, 26 states")
    for name, s in found.items():
        ratios = f"{s / found['viterbi']:6.1f} × viterbi   {s / found['batched']:6.1f} × batched"
        print(f"  {name:<12} {1e3 * s:8.2f} ms   {ratios}")
    print("growth of viterbi, each size twice the one before")
    for what, sizes in {
        "length": [(64, 50 * f, 26) for f in (1, 2, 4)],
        "states": [(64, 50, 32 * f) for f in (1, 2, 4)],
        "batch": [(256 * f, 50, 26) for f in (1, 2, 4)],
    }.items():
        inputs = {str(size): draw(*size) for size in sizes}
        growth = list(seconds({k: lambda v=v: viterbi(*v) for k, v in inputs.items()}, 9).values())
        ratios = ", ".join(f"{b / a:.2f}" for a, b in pairwise(growth))
        print(f"  {what:<8} {', '.join(f'{1e3 * g:.1f} ms' for g in growth)}   ratios {ratios}")


if __name__ == "__main__":
    main()
