"""The exact solution, with an interior-point solver: for verification."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from proxsvm._extras import load
from proxsvm.losses.base import Atom, detached, like, parts
from proxsvm.losses.hulls import Hull, Listed
from proxsvm.point import DualPoint, certified
from proxsvm.problem import ProxProblem
from proxsvm.solvers._arrays import to_numpy
from proxsvm.solvers.base import DualSolver, check_options


@dataclass(frozen=True)
class ExactQP(DualSolver):
    """The maximum of the dual as a quadratic program, solved with cvxpy (Clarabel by default).

        maximise   lam − ½ ‖r + delta‖²   over the hull of the atoms of every sample

    The hull is the loss's own where it has one; else that of the atoms that the oracle finds, re-solved until it finds
    no better one. So every loss can be verified.

    Args:
        solver: any QP solver of cvxpy, by its name there.
        tol: the certified relative gap to reach; a solution above it, and above rounding, gives a RuntimeWarning.
        max_entries: the size limit of the dense Jacobian, score entries × parameters.
        max_rounds: how often the oracle may be called for atoms.
        options: passed to the solver as they are.
    """

    solver: str = "CLARABEL"
    tol: float = 1e-7
    max_entries: int = 50_000_000
    max_rounds: int = 500
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(tol=self.tol, max_entries=self.max_entries, max_rounds=self.max_rounds)

    def solve(self, problem: ProxProblem) -> DualPoint:
        """The best dual point, with its certified gap."""
        if problem.ranks is not None:
            raise RuntimeError(
                "the samples are spread over several ranks, so no rank has the whole Jacobian: use another solver, or "
                "verify in a process of its own"
            )
        origin = problem.origin
        loss, scores, target = origin.loss, detached(origin.scores), origin.target
        factor = _factor(problem, self.max_entries)
        hull, bounds, atoms = loss.hull(scores, target), origin.lower_bounds(), [loss.oracle(scores, target)]
        if bounds is not None:
            atoms.append(Atom(like(scores, tuple(torch.zeros_like(u) for u in parts(scores))), bounds))
        for _ in range(self.max_rounds):
            point = self._best_of(problem, hull or Listed(atoms), factor)
            v, gap = problem.linearised_scores(point), problem.gap(point)
            relative, found = float(problem.relative(gap, point)), loss.oracle(v, target)
            at_best = hull is not None or bool((found.b(v) <= Listed(atoms).best(v).b(v).clamp(min=0)).all())
            # The solver's own rounding error, at least.
            rounding = max(1e-9, 100.0 * torch.finfo(gap.dtype).eps) * (1.0 + abs(float(problem.dual(point))))
            if at_best and relative > self.tol and float(gap) > rounding:
                warnings.warn(
                    f"{self.solver} left a relative gap of {relative:.1e} on the exact QP, above tol={self.tol:g}: "
                    "scale the problem, pass options to the solver or try another one, or raise tol",
                    RuntimeWarning,
                    stacklevel=2,
                )
            if at_best or relative <= self.tol:
                return certified(point, gap)
            atoms.append(found)
        raise RuntimeError(
            f"after {self.max_rounds} rounds the oracle still finds better atoms: the gap is {float(gap):.2e}. Give "
            f"{type(loss).__name__} a hull(), or raise max_rounds or tol"
        )

    def _best_of(self, problem: ProxProblem, hull: Hull, factor: np.ndarray[Any, Any]) -> DualPoint:
        polytope, cp = hull.express(), load("cvxpy", extra="qp")
        origin = problem.origin
        p = to_numpy(origin.coefficients)
        lam: Any = p @ polytope.offset
        weighted = []
        for s, u in zip(polytope.s, parts(origin.scores), strict=True):
            if not u.numel():  # the pairs of a chain of one node
                continue
            lam = lam + p @ cp.sum(cp.multiply(to_numpy(u).reshape(len(p), -1), s), axis=1)
            weighted.append(cp.reshape(cp.diag(p) @ s, (s.shape[0] * s.shape[1],), order="C"))
        r_plus_delta = factor[:, 0] + factor[:, 1:] @ cp.hstack(weighted)
        qp = cp.Problem(cp.Maximize(lam - cp.sum_squares(r_plus_delta) / 2), polytope.constraints)
        options = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-10, "tol_feas": 1e-10} if self.solver == "CLARABEL" else {}
        with warnings.catch_warnings():  # the gap of the point says how accurate it is
            warnings.filterwarnings("ignore", "Solution may be inaccurate", UserWarning)
            qp.solve(solver=self.solver, **{**options, **self.options})
        if qp.status not in ("optimal", "optimal_inaccurate"):
            raise RuntimeError(f"{self.solver} ended with status {qp.status!r} on the exact QP; try solver='OSQP'")
        found = tuple(
            torch.as_tensor(s.value, dtype=u.dtype, device=u.device).reshape(u.shape) if u.numel() else u.detach()
            for s, u in zip(polytope.s, parts(origin.scores), strict=True)
        )
        s = like(origin.scores, found)
        offset = hull.lift(s)  # a concave offset may be NaN where rounding takes s out of its domain
        if offset is None:
            offset = torch.as_tensor(polytope.offset.value).to(origin.coefficients)
        return problem.vertex(Atom(s, offset))


def _factor(problem: ProxProblem, max_entries: int) -> np.ndarray[Any, Any]:
    """F with ‖F [1; x]‖² = ‖r + Jᵀx‖², of at most m + 1 rows for m score entries: the R of a QR decomposition."""
    line = problem.linearization
    m, P = sum(u.numel() for u in parts(line.scores)), sum(w.numel() for w in problem.params)
    if m * P > max_entries:
        raise ValueError(
            f"the exact QP of {m} score entries and {P} parameters needs a Jacobian of {m * P:,} entries, more than "
            f"max_entries={max_entries:,}: verify on fewer samples or a smaller network, or raise max_entries"
        )
    r = torch.cat([x.reshape(-1) for x in problem.geometry.r()])
    matrix = problem.geometry.root(torch.cat([r[None], line.jacobian()]).double()).T
    return to_numpy(torch.linalg.qr(matrix, mode="r").R if m + 1 < P else matrix)
