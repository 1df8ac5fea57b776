"""The exact solution, by an interior-point solver: for verification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm.extras import load
from proxsvm.losses.base import Atom, Polytope, like, parts
from proxsvm.point import certified
from proxsvm.problem import DualPoint, ProxProblem
from proxsvm.solvers.base import DualSolver


@dataclass(frozen=True)
class ExactQP(DualSolver):
    """The maximum of the dual as a quadratic programme, solved by cvxpy (Clarabel by default).

        maximise   lam − ½ ‖r + delta‖²_η   over the hull of the atoms of every sample

    The hull is the loss's own compact polytope where it has one; else the hull of its listed vertices; else the hull
    of atoms that the oracle finds, re-solved until the oracle finds no better one. So every loss can be verified.

    Args:
        solver: any QP solver of cvxpy, by its name there.
        tol: the certified relative gap to reach.
        max_entries: the size limit of the dense Jacobian, score entries × parameters.
        max_rounds: how often the oracle may be asked for atoms.
        options: passed to the solver as they are.
    """

    solver: str = "CLARABEL"
    tol: float = 1e-7
    max_entries: int = 50_000_000
    max_rounds: int = 500
    options: dict[str, Any] = field(default_factory=dict)

    def solve(self, problem: ProxProblem) -> DualPoint:
        """The best dual point, with its certified gap."""
        origin = problem.origin
        loss, scores, target = origin.loss, like(origin.scores, _detached(origin.scores)), origin.target
        factor = _factor(problem, self.max_entries)
        polytope = loss.polytope(scores, target)
        if polytope is not None:
            return self._best_of(problem, polytope, factor)

        atoms = loss.vertices(scores, target) or [loss.oracle(scores, target)]
        point = problem.start()
        for _ in range(self.max_rounds):
            point = self._best_of(problem, _hull(atoms, scores), factor)
            assert point.gap is not None
            if problem.relative(point.gap, point) <= self.tol:
                return point
            found = loss.oracle(problem.linearised_scores(point), target)
            if _all_listed(found, atoms):
                return point  # the oracle knows nothing better: what is left of the gap is rounding
            atoms.append(found)
        raise RuntimeError(
            f"after {self.max_rounds} rounds the oracle still finds better atoms: the gap is "
            f"{float(problem.gap(point)):.2e}. Give {type(loss).__name__} a polytope() or vertices(), or raise "
            "max_rounds or tol"
        )

    def _best_of(self, problem: ProxProblem, polytope: Polytope, factor: np.ndarray[Any, Any]) -> DualPoint:
        cp = load("cvxpy", extra="qp")
        origin = problem.origin
        p = _numpy(origin.coefficients)
        lam: Any = p @ polytope.offset
        weighted = []
        for s, u in zip(polytope.s, parts(origin.scores), strict=True):
            lam = lam + p @ cp.sum(cp.multiply(_numpy(u).reshape(len(p), -1), s), axis=1)
            weighted.append(cp.reshape(cp.diag(p) @ s, (s.shape[0] * s.shape[1],), order="C"))
        r_plus_delta = factor[:, 0] + factor[:, 1:] @ cp.hstack(weighted)
        qp = cp.Problem(cp.Maximize(lam - cp.sum_squares(r_plus_delta) / 2), polytope.constraints)
        options = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-10, "tol_feas": 1e-10} if self.solver == "CLARABEL" else {}
        qp.solve(solver=self.solver, **{**options, **self.options})
        if qp.status not in ("optimal", "optimal_inaccurate"):
            raise RuntimeError(f"{self.solver} ended with status {qp.status!r} on the exact QP; try solver='OSQP'")
        found = tuple(
            torch.as_tensor(s.value, dtype=u.dtype, device=u.device).reshape(u.shape)
            for s, u in zip(polytope.s, parts(origin.scores), strict=True)
        )
        offset = torch.as_tensor(polytope.offset.value).to(origin.coefficients)
        point = problem.vertex(Atom(like(origin.scores, found), offset))
        return certified(point, problem.gap(point))


def _factor(problem: ProxProblem, max_entries: int) -> np.ndarray[Any, Any]:
    """F with ‖F [1; x]‖² = ‖r + Jᵀx‖²_η, of at most m + 1 rows for m score entries: the R of a QR decomposition."""
    line = problem.linearization
    m, P = sum(u.numel() for u in parts(line.scores)), sum(w.numel() for w in problem.params)
    if m * P > max_entries:
        raise ValueError(
            f"the exact QP of {m} score entries and {P} parameters needs a Jacobian of {m * P:,} entries, more than "
            f"max_entries={max_entries:,}: verify on fewer samples or a smaller network, or raise max_entries"
        )
    r = torch.cat([(g.decay * problem.params[i]).reshape(-1).double() for g in problem.groups for i in g.at])
    eta = torch.cat(
        [torch.as_tensor(g.eta).double().expand(problem.params[i].numel()) for g in problem.groups for i in g.at]
    ).to(r.device)
    matrix = torch.cat([r.detach()[:, None], line.jacobian().double().T], 1) * eta.sqrt()[:, None]
    return _numpy(torch.linalg.qr(matrix, mode="r").R if m + 1 < P else matrix)


def _hull(atoms: list[Atom], scores: Any) -> Polytope:
    """The convex hull of the listed atoms, for each sample by itself: weights α ≥ 0 with Σ_v α_v = 1."""
    cp = load("cvxpy", extra="qp")
    n = len(atoms[0].offset)
    zero = Atom(like(scores, tuple(torch.zeros_like(u) for u in parts(scores))), torch.zeros_like(atoms[0].offset))
    atoms = [zero, *atoms]  # (0, 0) is always in the hull
    alpha = cp.Variable((n, len(atoms)), nonneg=True)
    s = []
    for k in range(len(parts(scores))):
        of_sample = np.stack([_numpy(parts(a.s)[k]).reshape(n, -1) for a in atoms], axis=1)  # [n, V, size]
        s.append(cp.vstack([alpha[i] @ of_sample[i] for i in range(n)]))
    offset = cp.sum(cp.multiply(np.stack([_numpy(a.offset) for a in atoms], axis=1), alpha), axis=1)
    return Polytope(tuple(s), offset, [cp.sum(alpha, axis=1) == 1])


def _all_listed(atom: Atom, atoms: list[Atom]) -> bool:
    """Whether each sample's atom is zero or stands in the list already."""
    n = len(atom.offset)
    listed = torch.zeros(n, dtype=torch.bool, device=atom.offset.device)
    zero = Atom(like(atom.s, tuple(torch.zeros_like(s) for s in parts(atom.s))), torch.zeros_like(atom.offset))
    for other in [zero, *atoms]:
        same = other.offset == atom.offset
        for a, b in zip(parts(other.s), parts(atom.s), strict=True):
            same = same & (a == b).reshape(n, -1).all(1)
        listed = listed | same
    return bool(listed.all())


def _numpy(x: Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(x.detach().cpu().double().numpy())


def _detached(scores: Any) -> tuple[Tensor, ...]:
    return tuple(u.detach() for u in parts(scores))
