"""Verify any step against the exact solution, and any loss against its own definition."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import torch

from proxsvm._scores import detached, inner, like, parts
from proxsvm.losses.base import ConvexLoss, Origin
from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers.base import DualSolver
from proxsvm.solvers.exact_qp import ExactQP
from proxsvm.structures import Structure


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
        slack = self.tol * max(1.0, abs(self.primal), abs(self.exact)) + self.exact_gap
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
        feasible = f"feasible, D ≤ QP ≤ P; not optimal, the relative gap is {self.relative_gap:.1e}"
        return "optimal" if self.optimal else feasible if self.ok else "VIOLATED: D ≤ QP ≤ P does not hold"

    def __str__(self) -> str:
        return f"""{self.solver}
  primal  P(d)     {self.primal:.8g}
  exact   QP       {self.exact:.8g}  (± {self.exact_gap:.1e})
  dual    D        {self.dual:.8g}
  gap     P − D    {self.gap:.3e}  (relative {self.relative_gap:.1e})
  ‖d − d*‖ / ‖d*‖  {self.distance:.3e}
  γ, steps         {self.gamma:.4g}, {self.steps}
  verdict          {self.verdict}"""


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
    gap, exact_gap = (float(problem.gap(p)) for p in (point, best))
    distance, relative_gap = (d - d_best).norm() / (d_best.norm() or 1.0), problem.relative_gap(point)
    gap = 0.0 if -tol * max(1.0, abs(primal), abs(optimum)) <= gap < 0 else gap  # rounding
    numbers = primal, dual, gap, float(relative_gap), optimum, max(exact_gap, 0.0), float(distance), float(point.gamma)
    return Report(repr(solver), *numbers, point.steps, tol, problem.origin.loss.exact)


def _solved(problem: ProxProblem, solver: DualSolver) -> DualPoint:
    """What a solver finds; on a terminal, a line says what is being solved, and how far an iterative solver is."""
    if not sys.stderr.isatty():
        return solver.solve(problem)
    entries, params = (sum(x.numel() for x in found) for found in (parts(problem.origin.scores), problem.params))
    line = f"{type(solver).__name__}: {entries:,} score entries × {params:,} parameters"

    def show(text: str) -> None:
        print(f"{text:<100}", end="\r", file=sys.stderr, flush=True)

    show(f"{line} …")
    watched: Any = solver
    if getattr(solver, "callback", show) is None:
        watched = replace(watched, callback=lambda now: show(f"{line}, step {now.step}, gap {max(now.gap, 0):.1e}"))
    point: DualPoint = watched.solve(problem)
    show("")
    return point


def check_loss(loss: ConvexLoss, scores: Any, target: Any, *, trials: int = 20, tol: float = 1e-6) -> None:
    """Check that a loss is what it claims: the largest of its atoms, and never below 0 or its own lower bound.

    At the given scores and at ``trials`` random ones the oracle's atom must be at least as good as all others found,
    the hull's own (where there is one) and the smoothed one, and not better than the whole hull; with an approximate
    oracle (``exact = False``) only the last is required. A structured hinge must have Δ(y, y) = 0.
    Raises AssertionError with the numbers, TypeError or ValueError for what is no atom. For tests of your own losses.

    ``tol`` is relative to the largest score, and to the sum of the terms of ⟨s, u⟩ + c, which may cancel; it is never
    less than 100 rounding errors of the scores' dtype.

    >>> from proxsvm.losses import L1Regression
    >>> check_loss(L1Regression(), torch.randn(4, 2), torch.randn(4, 2))
    """
    scores, target = loss.prepare(scores, target)
    scores = detached(loss.expand(scores, target))
    name, tol = type(loss).__name__, max(tol, 100 * torch.finfo(parts(scores)[0].dtype).eps)
    structure = getattr(loss, "structure", None)
    if isinstance(structure, Structure):
        for method in ("features", "cost"):
            _check_form(f"{type(structure).__name__}.{method}", getattr(structure, method)(target, scores), scores)
    elif isinstance(loss, StructuredHinge) and type(loss).features is not StructuredHinge.features:
        _check_form(f"{name}.features", loss.features(target, scores), scores)
        cost = loss.cost(target, target)
        if cost.shape != parts(scores)[0].shape[:1] or bool(cost.any()):
            raise AssertionError(f"{name}.cost(y, y) is {cost.tolist()}; expected 0 for each sample, [n]")

    def require(ok: bool, message: str) -> None:
        if not ok:
            raise AssertionError(f"{name}{message}")

    points, widths = [scores], [2.0 ** (t % 5 - 1) for t in range(trials)]
    points += [like(scores, tuple(u + width * torch.randn_like(u) for u in parts(scores))) for width in widths]
    atoms = [loss.oracle(u, target) for u in points]
    for u, atom in zip(points, atoms, strict=True):
        loss._check(atom, u)
        best = atom.b(u)
        terms = inner(*(tuple(part.abs() for part in parts(x)) for x in (atom.s, u))) + atom.offset.abs()
        slack = tol * (1 + max(float(x.abs().max()) for x in (*parts(u), terms)))
        lowest, apart = float(best.min()), float((atom.value_at(u) - best).abs().max())
        require(lowest >= -slack, f" is negative, {lowest:.3g}: (0, 0) is not in the hull of its atoms")
        require(apart <= slack, f".oracle returned an atom whose value is not ⟨s, u⟩ + c, but {apart:.3g} away")
        value = best if loss.smooth else loss.values(u, target)[0].detach()
        other = float((value - best).abs().max())
        require(other <= slack, f" has values that are not those of its atoms, but {other:.3g} away")
        bound, hull = Origin(loss, u, target).lower_bounds(), loss.hull(u, target)
        below = 0.0 if bound is None else float((bound - best).max())
        require(below <= slack, f" is {below:.3g} below its own lower_bound")
        listed = None if hull is None else hull.best(u)
        outside = 0.0 if listed is None else float((best - listed.b(u).clamp(min=0)).max())
        require(outside <= slack, f".oracle is better than all atoms of its hull, by {outside:.3g}: it is none of them")
        others = [*atoms, *([] if listed is None else [listed]), *([loss.smoothed(u, target)] if loss.smooth else [])]
        better = max(float((other.b(u) - best).max()) for other in others)
        require(not loss.exact or better <= slack, f".oracle is not the best atom: another is better by {better:.3g}")


def _check_form(name: str, given: Any, scores: Any) -> None:
    """Raise ValueError or TypeError unless ``given``, where it is not None, has the shapes and dtypes of the scores."""
    pairs = [(x, u) for x, u in zip(parts(given), parts(scores), strict=True) if x is not None]
    shapes, expected = ([tuple(pair[i].shape) for pair in pairs] for i in (0, 1))
    if shapes != expected:
        raise ValueError(f"{name} returned shapes {shapes}; expected those of the scores, {expected}")
    for x, u in pairs:
        if x.dtype != u.dtype:
            raise TypeError(f"{name} returned {x.dtype}; expected that of the scores, {u.dtype}: .to(scores)")
