"""MultiStepFW on one batch of digits: the primal from above, the dual from below, the exact value between them."""

from __future__ import annotations

import torch
from _network import digits, network
from _style import BLACK, GREEN, GREY, ORANGE, PURPLE, plt, save

from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import ExactQP


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    x, y, *_ = digits()
    model = network()
    problem = ProxProblem.from_scores(MultiClassHinge(), model(x[:16].double()), y[:16], model.parameters(), lr=1.0)
    exact = problem.dual(ExactQP().solve(problem)).item()
    primal, dual, gap = [], [], []
    point = problem.start()
    for _ in range(61):
        primal.append(problem.primal(point).item())
        dual.append(problem.dual(point).item())
        gap.append(problem.relative_gap(point).item())
        vertex, _ = problem.conditional_gradient(point)
        point = problem.move(point, vertex)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    left.plot(primal, color=PURPLE, label="primal P")
    left.plot(dual, color=GREEN, label="dual D")
    left.axhline(exact, color=BLACK, lw=1, ls="--", label="exact QP")
    left.fill_between(range(len(dual)), dual, primal, color=GREY, alpha=0.15)
    left.set(title="D ≤ QP ≤ P, always", xlabel="Frank-Wolfe steps", ylim=(0, 1.15 * max(primal[1:])))
    left.legend()
    right.plot(gap, color=ORANGE)
    right.set(title="the certified relative gap", xlabel="Frank-Wolfe steps", yscale="log")
    right.grid(alpha=0.2)
    save(figure, "gap.svg")


if __name__ == "__main__":
    main()
