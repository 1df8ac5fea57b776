"""Newton's method on a linear model, where block descent would take too many passes: features of very different scales.

The proximal point method on the dual adds −(h/2) Σ_i p_i ‖s_i − s̄_i‖² around the last point s̄. What is left to minimise
over the displacement V of the weights is smooth,

    φ(V) = ‖V‖²/(2η) + Σ_i p_i max over s in the hull of (⟨s, u_i + V x_i⟩ + c − (h/2) ‖s − s̄_i‖²)

with the gradient V/η + Σ_i p_i s_i x_iᵀ and the (generalised) Hessian 1/η + Σ_i p_i (∂s_i/∂v) ⊗ x_i x_iᵀ. Its
maximisers s_i are a dual point, with a certified gap. A smooth loss needs no h. V is in the span of X's rows: where
there are more features than rows, it has as many coordinates as rows.

For the hinge of Weston and Watkins the distance is that of α, s = α − σ e_y, whose hull is a box then.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from proxsvm.losses.hulls import ClosedHull, EntropySimplex, Rivals

STEPS = 25  # about as many as a small problem takes; one with 600 weights takes 50 to 190
QUADRATIC_STEPS = 5  # the same, of a φ that is piecewise quadratic
MAX_SIDE, MAX_ENTRIES = 2000, 50_000_000  # of the Hessian, K·F, and of X as a dense matrix
SHRINK, FLOOR = 0.3, 1e-3  # h after a solved φ, and its least value relative to the first, below which rounding counts
SOLVED, MAX_TRIES = 1e-9, 30  # φ is solved once a step promises less than this fraction of its value, or by rounding
IDLE = 12  # steps without a better point, after which rounding is what is left
LAST = 30.0  # a smooth φ needs one more step once that promises this multiple of the gap that is enough


def work(quadratic: bool, n: int, M: int, F: int) -> float:
    """The time of a solve, in multiplications of a block step; inf where a matrix would be too large."""
    side = min(n, F)
    if M * side > MAX_SIDE or n * F > MAX_ENTRIES:
        return math.inf
    # The multiplications of a Hessian and its factorisation are about five times as fast as others.
    hessian = M * (M + 1) / 2 * n * side**2 + (M * side) ** 3 / 3
    steps = (QUADRATIC_STEPS if quadratic else STEPS) + M * side / 8
    return steps * (hessian / 5 + 50 * n * M + 1e6) + n * max(F - n, 0) * side


class Newton:
    """Newton steps from a dual point ``s``, [n, M]. ``X``: [n, F]; ``u``: [n, M], the scores at s = 0; all float64.

    ``shape`` is that in which the hull takes s and v. Inside, scores and s are ``[M, n]``, which vectorises for any M.
    """

    def __init__(self, hull: Any, X: Tensor, p: Tensor, eta: float, u: Tensor, s: Tensor, shape: torch.Size) -> None:
        tensors = {f.name: getattr(hull, f.name) for f in fields(hull)}
        tensors = {name: x.double() for name, x in tensors.items() if torch.is_tensor(x) and x.is_floating_point()}
        self.hull: Any = replace(hull, **tensors)
        self.p, self.eta, self.u, self.shape = p, eta, u.t().contiguous(), shape
        n, F = X.shape
        self.X = X if n >= F else torch.linalg.qr(X.t(), mode="r").R.t()  # in an orthonormal basis of the rows
        self.rivals = hull.cost.to(u).t() if isinstance(hull, Rivals) else None  # 0 at y
        self.closed = isinstance(hull, ClosedHull | Rivals) and not getattr(hull, "ridge", 0.0)
        self.V, self.U = torch.zeros(len(self.u), self.X.shape[1], dtype=X.dtype), self.u
        self.h = self.first = self._value(self.V, self.U) / float(p.sum()) or 1.0
        self.floor, self.tries, self.solved = FLOOR * self.first, 0, False  # whether φ is
        self.center = s.t().contiguous()
        if self.center.any():
            V = self.displacement(self.center)
            U = self.u + V @ self.X.t()
            if self._value(V, U) < self._value(self.V, self.U):  # block descent may be far from the primal solution
                self.V, self.U = V, U
        self.s = self._respond(self.U)

    def _flat(self, x: Tensor) -> Tensor:
        return x.reshape(len(self.p), -1).t().contiguous()

    def _shaped(self, x: Tensor) -> Tensor:
        return x.t().reshape(self.shape)

    def displacement(self, s: Tensor) -> Tensor:
        """V of a dual point, ``[M, n]``."""
        return -self.eta * (self.p * s) @ self.X

    def _respond(self, U: Tensor) -> Tensor:
        """s at the scores U."""
        if self.rivals is not None:
            margins = self._from_truth(U) + 1
            return self._against_truth((margins / self.h + self.center).clamp(0, 1))
        if self.closed:
            return self._flat(self.hull.nearest(self._shaped(U + self.h * self.center), U.new_tensor(self.h)).s)
        return self._flat(self.hull.best(self._shaped(U)).s)

    def _from_truth(self, v: Tensor) -> Tensor:
        """v_k − v_y."""
        assert self.rivals is not None
        return v - ((1 - self.rivals) * v).sum(0)

    def _against_truth(self, alpha: Tensor) -> Tensor:
        """α − σ e_y, of the α of the others."""
        assert self.rivals is not None
        alpha = self.rivals * alpha
        return alpha - (1 - self.rivals) * alpha.sum(0)

    def _value(self, V: Tensor, U: Tensor) -> float:
        """P at the displacement V, whose scores are U."""
        losses: Tensor = self.hull.best(self._shaped(U)).b(self._shaped(U))
        return float(self.p @ losses + V.square().sum() / (2 * self.eta))

    def _curve(self, s: Tensor, moved: Tensor) -> Tensor:
        """(∂s/∂v) times ``moved``, the change of the scores."""
        if self.rivals is not None:
            return self._against_truth(((s > 0) & (s < 1)) * self._from_truth(moved) / self.h)
        if isinstance(self.hull, EntropySimplex):
            q = self.hull.q.t()
            alpha = s + q
            return alpha * (moved - (alpha * moved).sum(0) / q.sum(0).clamp(min=1e-300))
        free: Tensor = self.hull.tangent(self._shaped(s), self._shaped(moved)[None])[0]
        return self._flat(free) / (self.h if self.closed else self.hull.ridge)

    def _direction(self, gradient: Tensor) -> Tensor:
        """−Hessian⁻¹ gradient; the Hessian is scaled to a unit diagonal first, whatever the features' scales are."""
        M, F = gradient.shape
        hessian = torch.zeros(M, F, M, F, dtype=gradient.dtype)
        for k in range(M):
            unit = torch.zeros_like(self.s)
            unit[k] = 1.0
            weight = self.p * self._curve(self.s, unit)[: k + 1]
            size = weight.abs().amax(0)
            rows = (size > 1e-6 * size.mean()).nonzero()[:, 0]
            X = self.X[rows]
            products = X.t() @ (weight[:, rows].t()[:, :, None] * X[:, None]).reshape(len(rows), (k + 1) * F)
            hessian[k, :, : k + 1] = products.reshape(F, k + 1, F)
        H = hessian.reshape(M * F, M * F)
        H = H.tril() + H.tril(-1).t()
        H.diagonal().add_(1 / self.eta)
        scale = H.diagonal().rsqrt()
        H = scale[:, None] * H * scale
        for ridge in (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-6):  # rounding may leave it singular
            H.diagonal().add_(ridge)
            L, failed = torch.linalg.cholesky_ex(H)
            if not failed:
                return -(scale * torch.cholesky_solve((scale * gradient.reshape(-1))[:, None], L)[:, 0]).reshape(M, F)
        return -self.eta * gradient  # of the regularisation alone: the features overflow

    def solve(self, enough: float) -> tuple[Tensor, Tensor, float]:
        """Newton steps until a gap of ``enough`` is in reach, or one where φ is only a model of the dual.

        Returns a dual point s, ``[n, M]``, its c, ``[n]``, and D up to that of (0, 0): Σ p (⟨s, u⟩ + c) − ‖V(s)‖²/(2η).
        """
        for _ in range(STEPS):
            if self._step() <= max(LAST * enough, 1e-15 * self.first) or self.closed:
                break
        s = self.s
        offset = self.hull.lift(self._shaped(s)) if self.rivals is None else (self.rivals * s).sum(0)
        lam = self.p @ ((s * self.u).sum(0) + offset)
        return s.t(), offset, float(lam - self.displacement(s).square().sum() / (2 * self.eta))

    def _step(self) -> float:
        """Move V along Newton's direction d, with a line search; returns twice the decrease it promised."""
        if self.solved:
            self.center, self.h, self.tries = self.s, max(SHRINK * self.h, self.floor), 0
            self.s = self._respond(self.U)
        gradient = (self.V - self.displacement(self.s)) / self.eta
        d = self._direction(gradient)
        moved = d @ self.X.t()
        t, promise = 1.0, -float((gradient * d).sum())
        low, high = 0.0, math.inf
        for _ in range(60):  # the slope has kinks, where Newton's step may overshoot
            ahead = self._slope(t, d, moved)
            if -0.5 * promise <= ahead <= 0.01 * promise:  # φ is convex: where the slope is negative, it has fallen
                break
            low, high = (t, high) if ahead < 0 else (low, t)
            t = 2 * t if high == math.inf else (low + high) / 2
        else:
            t = low
            self._slope(t, d, moved)
        self.V, self.U = self.V + t * d, self.U + t * moved
        self.tries += 1
        if self.closed:
            self.solved = promise <= SOLVED * self._value(self.V, self.U) or self.tries == MAX_TRIES
        return promise

    def _slope(self, t: float, d: Tensor, moved: Tensor) -> float:
        """The derivative of φ along d, at t, whose s becomes the current one."""
        self.s = self._respond(self.U + t * moved)
        return float(((self.V + t * d) * d).sum() / self.eta + (self.p * self.s * moved).sum())

    def relax(self) -> bool:
        """Raise h, because s has the rounding errors of v/h; False where it is as large as at first already."""
        if self.floor >= self.first:
            return False
        self.h = self.floor = min(10 * self.floor, self.first)
        return True
