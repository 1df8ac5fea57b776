"""The dual between the start and the first vertex is a parabola: γ is its top, clipped to [0, 1].

One batch of digits and one network, at three values of η.
"""

from __future__ import annotations

import copy

import torch
from _network import digits, network
from _style import GREY, ORANGE, plt, save

from proxsvm import DualPoint, ProxProblem
from proxsvm.losses import MultiClassHinge


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y, *_ = digits()
    model = network()
    gammas = torch.linspace(0, 1, 101)
    figure, row = plt.subplots(1, 3, figsize=(11, 3), layout="constrained", sharey=True)
    for axes, eta in zip(row, (0.05, 0.5, 3.0), strict=True):
        live = copy.deepcopy(model)
        loss = MultiClassHinge(smooth=True)
        problem = ProxProblem.from_scores(loss, live(x[:64]), y[:64], live.parameters(), lr=eta)
        start, first = problem.start(), problem.first()
        dual = [problem.dual(DualPoint([g * d for d in first.delta], g * first.lam, g, 1)).item() for g in gammas]
        best = problem.line_search(start, first).item()
        axes.plot(gammas, dual, color=ORANGE)
        axes.plot(best, max(dual), "o", color=ORANGE, ms=8)
        axes.axvline(best, color=GREY, lw=1, ls="--")
        axes.set(title=f"η = {eta:g}:  γ = {best:.2f},  γη = {best * eta:.2f}", xlabel="γ", ylim=(-0.4, 1.5))
        axes.axhline(0, color=GREY, lw=0.5)
    row[0].set_ylabel("dual D along the segment")
    save(figure, "line-search.svg")


if __name__ == "__main__":
    main()
