"""The paper's Figure 1: what SGD believes of the objective, and what the loss-preserving linearisation believes.

A network with one weight and three scores, under the multi-class hinge. Every curve and every next iterate comes from
proxsvm: the piecewise linear model from the graph's Jacobian, its minimum from the exact QP.
"""

from __future__ import annotations

import torch
from _style import BLACK, GREY, ORANGE, PURPLE, plt, save
from torch import Tensor

from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import ExactQP

torch.set_default_dtype(torch.float64)
HINGE, TRUTH = MultiClassHinge(reduction="none"), torch.tensor([0])
W_T, ETA = 2.6, 2.2


def network(w: Tensor) -> Tensor:
    """Scores [n, 3] of n weights: the true class's is 0, one rises and one falls."""
    return torch.stack([0 * w, 0.20 * w**2 + 0.45 * w - 1.0, 0.05 * w**2 - 0.9 * w + 0.1], 1)


def value(scores: Tensor) -> Tensor:
    return HINGE(scores, TRUTH.expand(len(scores)))


def main() -> None:
    grid = torch.linspace(-1.9, 3.4, 500)
    w_t = torch.tensor([W_T], requires_grad=True)
    scores = network(w_t)
    problem = ProxProblem.from_scores(MultiClassHinge(), scores, TRUTH, [w_t], lr=ETA)
    first = problem.first()
    tangent = first.lam + first.delta[0] * (grid - W_T)
    J = problem.linearization.jvp([torch.ones(1)])
    model = value(scores.detach() + J * (grid - W_T)[:, None])
    sgd = W_T - ETA * first.delta[0].item()
    exact = ExactQP().solve(problem)
    kept = W_T + problem.displacement(exact)[0].item()
    truth = value(network(grid))
    best = grid[truth.argmin()].item()

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    proximal = (grid - W_T) ** 2 / (2 * ETA)
    for axes, added in ((left, 0.0), (right, proximal)):
        axes.plot(grid, truth, color=BLACK, label="the objective")
        axes.plot(grid, tangent + added, color=PURPLE, label="SGD: one line")
        axes.plot(grid, model + added, color=ORANGE, label="network linearised, loss kept")
        axes.plot(W_T, value(network(w_t)).item(), "o", color=BLACK, ms=7)
        axes.set(ylim=(-1.6, 5.2), xlim=(-1.9, 3.4), xticks=[], yticks=[], xlabel="weight")
        axes.annotate(
            "$w_t$", (W_T, value(network(w_t)).item()), textcoords="offset points", xytext=(8, -12), fontsize=13
        )
    left.set_title("two models of the same objective at $w_t$")
    right.set_title("the same, each with the proximal term: where they step to")
    left.legend(loc="upper left")
    for at, name, color in ((sgd, "SGD", PURPLE), (kept, "proxsvm", ORANGE)):
        y = value(network(torch.tensor([at]))).item()
        bottom = (tangent + proximal if name == "SGD" else model + proximal).min().item()
        right.plot([at, at], [bottom, y], ":", color=color, lw=1.5)
        right.plot(at, bottom, "o", color=color, ms=7)
        right.plot(at, y, "D", color=color, ms=6)
        right.annotate(
            f"{name}\n$w_{{t+1}}$",
            (at, bottom),
            textcoords="offset points",
            xytext=(0, -40) if name == "SGD" else (10, -30),
            ha="center" if name == "SGD" else "left",
            color=color,
        )
    right.axvline(best, color=GREY, lw=1, ls="--")
    right.annotate("$w_*$", (best, 4.7), textcoords="offset points", xytext=(5, 0), color=GREY, fontsize=14)
    save(figure, "figure-1.svg")


if __name__ == "__main__":
    main()
