"""Verify any step against the exact solution, and any loss against its own definition."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from proxsvm.losses.base import Atom, ConvexLoss, detached, like, parts
from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers.base import DualSolver
from proxsvm.solvers.exact_qp import ExactQP


@dataclass(frozen=True)
class Report:
    """What :func:`verify` found. ``ok`` if D ≤ QP ≤ P holds, ``optimal`` if the step is also the exact one.

    With an approximate oracle it is not ``certified``: P and the gap are lower bounds, and ``ok`` may be False.
    """

    solver: str
    primal: float
    dual: float
    gap: float
    relative_gap: float
    exact: float
    exact_gap: float
    distance: float
    gamma: float
    steps: int
    tol: float
    certified: bool = True

    @property
    def ok(self) -> bool:
        """D ≤ QP ≤ P, up to ``tol`` of the problem's scale and the exact solver's own gap."""
        slack = _rounding(self.tol, self.primal, self.exact) + self.exact_gap
        return self.dual <= self.exact + slack and self.exact <= self.primal + slack

    @property
    def optimal(self) -> bool:
        """Whether the certified relative gap is at most ``tol``."""
        return self.certified and self.ok and self.relative_gap <= self.tol

    @property
    def verdict(self) -> str:
        """One of optimal, feasible, no certificate, VIOLATED."""
        if not self.certified:
            return "no certificate: the loss has an approximate oracle, so P and the gap are lower bounds"
        if not self.ok:
            return "VIOLATED: D ≤ QP ≤ P does not hold"
        if self.optimal:
            return "optimal"
        return f"feasible, D ≤ QP ≤ P; not optimal, the relative gap is {self.relative_gap:.1e}"

    def __str__(self) -> str:
        rows = [
            ("primal  P(d)", f"{self.primal:.8g}"),
            ("exact   QP", f"{self.exact:.8g}  (± {self.exact_gap:.1e})"),
            ("dual    D", f"{self.dual:.8g}"),
            ("gap     P − D", f"{self.gap:.3e}  (relative {self.relative_gap:.1e})"),
            ("‖d − d*‖ / ‖d*‖", f"{self.distance:.3e}"),
            ("γ, steps", f"{self.gamma:.4g}, {self.steps}"),
            ("verdict", self.verdict),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join([self.solver, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def verify(problem: ProxProblem, solver: DualSolver, *, exact: DualSolver | None = None, tol: float = 1e-6) -> Report:
    """Solve ``problem`` with ``solver`` and exactly, and compare.

    Args:
        problem: from :meth:`ProxProblem.from_scores` or ``optimizer.problem(value)``.
        solver: the solver to verify.
        exact: what to compare with; ``ExactQP()`` if None.
        tol: the relative accuracy of the comparison. In float32 use about 1e-4.

    >>> from proxsvm.losses import MultiClassHinge
    >>> from proxsvm.solvers import SingleStepFW
    >>> w = torch.zeros(2, 1, dtype=torch.double, requires_grad=True)
    >>> x = torch.tensor([[2.0]], dtype=torch.double)        # one sample, two classes: one step is the QP
    >>> problem = ProxProblem.from_scores(MultiClassHinge(), x @ w.T, torch.tensor([0]), [w], lr=1.0)
    >>> print(verify(problem, SingleStepFW()))                                # doctest: +ELLIPSIS
    SingleStepFW()
      primal  P(d)     0.0625
      exact   QP       0.0625  (± ...)
      dual    D        0.0625
      gap     P − D    0.000e+00  (relative 0.0e+00)
      ‖d − d*‖ / ‖d*‖  ...
      γ, steps         0.125, 1
      verdict          optimal
    """
    point, best = (_solved(problem, method) for method in (solver, exact or ExactQP()))
    d, d_best = (torch.cat([x.double().reshape(-1) for x in problem.displacement(p)]) for p in (point, best))
    primal, dual, optimum = (float(x) for x in (problem.primal(point), problem.dual(point), problem.dual(best)))
    rounding = _rounding(tol, primal, optimum)
    gap, exact_gap = (0.0 if -rounding <= x < 0 else x for x in (float(problem.gap(p)) for p in (point, best)))
    return Report(
        solver=repr(solver),
        primal=primal,
        dual=dual,
        gap=gap,
        relative_gap=float(problem.relative_gap(point)),
        exact=optimum,
        exact_gap=max(exact_gap, 0.0),
        distance=float((d - d_best).norm() / (d_best.norm() or 1.0)),
        gamma=float(point.gamma),
        steps=point.steps,
        tol=tol,
        certified=problem.origin.loss.exact,
    )


def _solved(problem: ProxProblem, solver: DualSolver) -> DualPoint:
    """What a solver finds; on a terminal, a line says what is being solved."""
    entries, params = (sum(x.numel() for x in found) for found in (parts(problem.origin.scores), problem.params))
    line = f"{type(solver).__name__}: {entries:,} score entries × {params:,} parameters …"
    line = line if sys.stderr.isatty() else ""
    print(line, end="\r" if line else "", file=sys.stderr, flush=True)
    point = solver.solve(problem)
    print(" " * len(line), end="\r" if line else "", file=sys.stderr, flush=True)
    return point


def _rounding(tol: float, primal: float, exact: float) -> float:
    return tol * max(1.0, abs(primal), abs(exact))


def check_loss(loss: ConvexLoss, scores: Any, target: Any, *, trials: int = 20, tol: float = 1e-6) -> None:
    """Check that a loss is what it claims: the largest of its atoms, and never below 0 or its own lower bound.

    At the given scores and at ``trials`` random ones the oracle's atom must be at least as good as all others found,
    the hull's own (where there is one) and the smoothed one, and not better than the whole hull. For a loss with an
    approximate oracle (``exact = False``) only the last is required. A value that comes with an atom must be that of
    the atom, and a structured hinge must have Δ(y, y) = 0.
    Raises AssertionError with the numbers, TypeError or ValueError for what is no atom. For tests of your own losses.

    ``tol`` is relative to the largest score, and to the sum of the terms of ⟨s, u⟩ + c, which may cancel.

    >>> from proxsvm.losses import L1Regression
    >>> check_loss(L1Regression(), torch.randn(4, 2), torch.randn(4, 2))
    """
    scores, target = loss.prepare(scores, target)
    scores = detached(loss.expand(scores, target))
    name = type(loss).__name__
    if isinstance(loss, StructuredHinge) and type(loss).features is not StructuredHinge.features:
        _check_labelling(loss, name, scores, target)

    def require(ok: bool, message: str) -> None:
        if not ok:
            raise AssertionError(f"{name}{message}")

    points = [scores] + [
        like(scores, tuple(u + torch.randn_like(u) * 2.0 ** (t % 5 - 1) for u in parts(scores))) for t in range(trials)
    ]
    atoms = [loss.oracle(u, target) for u in points]
    for u, atom in zip(points, atoms, strict=True):
        loss._check(atom, u)
        best = atom.b(u)
        slack = tol * (1 + max(float(x.abs().max()) for x in (*parts(u), _terms(atom, u))))
        lowest, apart = float(best.min()), float((atom.value_at(u) - best).abs().max())
        require(lowest >= -slack, f" is negative, {lowest:.3g}: (0, 0) is not in the hull of its atoms")
        require(apart <= slack, f".oracle returned an atom whose value is not ⟨s, u⟩ + c, but {apart:.3g} away")
        bound = loss.lower_bound(u, target)
        below = 0.0 if bound is None else float((bound - best).max())
        require(below <= slack, f" is {below:.3g} below its own lower_bound")
        hull = loss.hull(u, target)
        listed = None if hull is None else hull.best(u)
        outside = 0.0 if listed is None else float((best - listed.b(u).clamp(min=0)).max())
        require(outside <= slack, f".oracle is better than all atoms of its hull, by {outside:.3g}: it is none of them")
        others = [*atoms, *([] if listed is None else [listed]), *([loss.smoothed(u, target)] if loss.smooth else [])]
        better = max(float((other.b(u) - best).max()) for other in others)
        require(not loss.exact or better <= slack, f".oracle is not the best atom: another is better by {better:.3g}")


def _check_labelling(loss: StructuredHinge, name: str, scores: Any, target: Any) -> None:
    given, expected = ([tuple(x.shape) for x in parts(u)] for u in (loss.features(target, scores), scores))
    if given != expected:
        raise ValueError(f"{name}.features returned shapes {given}; expected those of the scores, {expected}")
    cost = loss.cost(target, target)
    if cost.shape != parts(scores)[0].shape[:1] or bool(cost.any()):
        raise AssertionError(f"{name}.cost(y, y) is {cost.tolist()}; expected 0 for each sample, [n]")


def _terms(atom: Atom, scores: Any) -> Tensor:
    """The size of what an atom's value is the sum of, Σ |s_j u_j| + |c|, ``[n]``."""
    n = len(atom.offset)
    products = ((s * u).abs().reshape(n, -1).sum(1) for s, u in zip(parts(atom.s), parts(scores), strict=True))
    return sum(products, start=atom.offset.abs())
