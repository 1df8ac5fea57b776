"""Three losses as what they are: the upper envelope of lines."""

from __future__ import annotations

import torch
from _style import GREY, ORANGE, plt, save

from proxsvm.losses import L1Regression, MultiClassHinge, QuantileRegression


def main() -> None:
    u = torch.linspace(-3, 3, 301)
    zero = torch.zeros(len(u))
    hinge = MultiClassHinge(reduction="none")(torch.stack([u, zero], 1), zero.long())
    panels = [
        ("MultiClassHinge, two classes", hinge, [(0.0, 0.0), (-1.0, 1.0)], "$u_y - u_k$"),
        ("L1Regression(epsilon=0.5)", _regression(L1Regression(0.5, reduction="none"), u), None, "$u - y$"),
        ("QuantileRegression(0.8)", _regression(QuantileRegression(0.8, reduction="none"), u), None, "$u - y$"),
    ]
    lines = {1: [(0.0, 0.0), (1.0, -0.5), (-1.0, -0.5)], 2: [(0.2, 0.0), (-0.8, 0.0)]}
    figure, row = plt.subplots(1, 3, figsize=(11, 3), layout="constrained", sharey=True)
    for i, (axes, (title, loss, own, label)) in enumerate(zip(row, panels, strict=True)):
        for s, c in own or lines[i]:
            axes.plot(u, s * u + c, color=GREY, lw=1, ls="--")
        axes.plot(u, loss, color=ORANGE, lw=3)
        axes.set(title=title, ylim=(-1.2, 3), xlabel=label, yticks=[0, 1, 2, 3])
        axes.axhline(0, color=GREY, lw=0.5)
    row[0].annotate("an atom: $\\langle s, u\\rangle + c$", (2.0, -1.0), (-0.2, 1.7), arrowprops={"arrowstyle": "->"})
    save(figure, "pieces.svg")


def _regression(loss: torch.nn.Module, u: torch.Tensor) -> torch.Tensor:
    return loss(u, torch.zeros_like(u))


if __name__ == "__main__":
    main()
