"""How a mini-batch goes through the modules, for the three kinds of solver. Plain SVG, no library."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

ORANGE, PURPLE, GREEN, BLUE, GREY = "#d95f02", "#7570b3", "#1b9e77", "#2171b5", "#777777"
WIDTH, LANE, TOP, BOX, HEIGHT = 1180, 208, 62, 166, 104
FOOT = 190  # the height of what stands below the lanes


@dataclass
class Box:
    """A station: what happens, where in ``proxsvm/`` it lives, and a line or two about it."""

    title: str
    where: str
    lines: list[str]
    color: str = GREY


YOURS = "#444444"
MODEL = Box("model(x)", "your network", ["one forward pass:", "scores u, with their graph"], YOURS)
LOSS = Box("criterion(u, y)", "losses", ["oracle → atom (s, c)", "value λ = mean ⟨s, u⟩ + c"], GREEN)
UPDATE = Box("Geometry.update", "geometry.py", ["w ← w − H⁻¹(r + δ)", "q ← μq + (1 − μ)g"], BLUE)
LANES = [
    (
        "After backward(): SingleStepFW",
        "the usual training loop; one gradient a step",
        [
            MODEL,
            LOSS,
            Box("value.backward()", "autograd", ["gradients are δ = Jᵀs;", "the graph is freed"], YOURS),
            Box("GradientProblem", "problem.py", ["what is left: one vertex", "(δ, λ), and past (q, h)"], PURPLE),
            Box("solver.solve", "solvers/single_step_fw.py", ["line search in closed form:", "γ in [0, 1]"], ORANGE),
            UPDATE,
        ],
    ),
    (
        "With a closure: MultiStepFW, CorrectiveFW",
        "the graph is kept, and is the linearisation",
        [
            MODEL,
            LOSS,
            Box("ProxProblem", "problem.py", ["the value carries loss,", "scores, target: P, D, gap"], PURPLE),
            Box("vjp, jvp", "linearization/graph.py", ["δ = Jᵀs, and u + Jd,", "on the retained graph"], PURPLE),
            Box("solver.solve", "solvers/multi_step_fw.py", ["oracle at u + Jd, then γ;", "until gap ≤ tol"], ORANGE),
            UPDATE,
        ],
    ),
    (
        "With a closure, on the Gram matrix: BlockFW, ExactQP",
        "small problems, solved to the end",
        [
            MODEL,
            LOSS,
            Box("ProxProblem", "problem.py", ["the same problem as", "for every other solver"], PURPLE),
            Box("Jacobian rows", "linearization/graph.py", ["J once; G = J H⁻¹ Jᵀ", "or its QR factor"], PURPLE),
            Box("solver.solve", "solvers/exact_qp.py", ["sample by sample, or a QP", "over the loss's hull"], ORANGE),
            UPDATE,
        ],
    ),
]
BELOW = [
    Box(
        "the metric: H = M/η",
        "metrics",
        [
            "⟨a, b⟩ = ⟨a, H⁻¹b⟩ for problem and solver, H⁻¹x for the update",
            "Euclidean: M = 1      Diagonal: M = √v̂ + ε      Kronecker: the same in eigenbases      your own",
        ],
        BLUE,
    ),
    Box(
        "two passes over memory",
        "_kernels",
        ["inner products, then the update", "compiled by numba, or torch's operations"],
        GREY,
    ),
]


def text(x: float, y: float, words: str, size: int = 13, color: str = "#222", extra: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{color}" {extra}>{escape(words)}</text>'


def box(x: float, y: float, content: Box, width: float = BOX) -> list[str]:
    middle = x + width / 2
    centred = 'text-anchor="middle"'
    return [
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{HEIGHT}" rx="8" fill="{content.color}" '
        f'fill-opacity="0.09" stroke="{content.color}" stroke-width="1.6"/>',
        text(middle, y + 24, content.title, 14, "#111", f'{centred} font-weight="600"'),
        text(middle, y + 42, content.where, 11, content.color, f'{centred} font-style="italic"'),
        *(text(middle, y + 66 + 18 * i, line, 11, "#333", centred) for i, line in enumerate(content.lines)),
    ]


def arrow(x1: float, x2: float, y: float) -> str:
    end = x2 - 2 if x2 > x1 else x2 + 2
    return f'<path d="M{x1:.0f} {y:.0f} H{end:.0f}" stroke="#555" stroke-width="1.6" marker-end="url(#head)"/>'


def loop(x1: float, x2: float, y: float, label: str) -> list[str]:
    """From the solver back to the linearisation, below the boxes."""
    path = f"M{x1:.0f} {y:.0f} v16 H{x2:.0f} v-14"
    return [
        f'<path d="{path}" fill="none" stroke="{ORANGE}" stroke-width="1.6" marker-end="url(#back)"/>',
        text((x1 + x2) / 2, y + 32, label, 11, ORANGE, 'text-anchor="middle"'),
    ]


def marker(name: str, color: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{color}"/></marker>'
    )


def svg() -> str:
    height = LANE * len(LANES) + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f"<defs>{marker('head', '#555')}{marker('back', ORANGE)}</defs>",
    ]
    gap = (WIDTH - 40 - 6 * BOX) / 5
    at = [20 + i * (BOX + gap) for i in range(6)]
    for row, (title, subtitle, boxes) in enumerate(LANES):
        y = row * LANE + TOP
        parts += [
            text(20, y - 34, title, 16, "#111", 'font-weight="600"'),
            text(20, y - 14, subtitle, 12, "#666"),
        ]
        for x, content in zip(at, boxes, strict=True):
            parts += box(x, y, content)
        parts += [arrow(a + BOX, b, y + HEIGHT / 2) for a, b in pairwise(at)]
        if row == 1:
            parts += loop(at[4] + BOX / 2, at[3] + BOX / 2, y + HEIGHT, "next displacement d = −H⁻¹(r + δ)")
    y, metric, kernels = len(LANES) * LANE + TOP, *BELOW
    parts += [
        text(20, y - 34, "Below all of them", 16, "#111", 'font-weight="600"'),
        text(20, y - 14, "loss × solver × metric × memory: one path for a step, whatever the four are", 12, "#666"),
        *box(at[2], y, metric, at[5] + BOX - at[2]),
        *box(at[0], y, kernels, at[1] + BOX - at[0]),
        arrow(at[2], at[1] + BOX, y + HEIGHT / 2),
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    path = Path(__file__).with_name("architecture.svg")
    path.write_text(svg())
    print(path)


if __name__ == "__main__":
    main()
