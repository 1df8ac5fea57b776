"""Newton's method on a linear model, where block descent would take too many passes: features of very different scales.

The proximal point method on the dual adds −(h/2) Σ_i p_i ‖s_i − s̄_i‖² around the last point s̄. What is left to minimise
over the displacement V of the weights is smooth,

    φ(V) = ‖V‖²/(2η) + Σ_i p_i max over s in the hull of (⟨s, u_i + V x_i⟩ + c − (h/2) ‖s − s̄_i‖²)

with the gradient V/η + Σ_i p_i s_i x_iᵀ and the (generalised) Hessian 1/η + Σ_i p_i (∂s_i/∂v) ⊗ x_i x_iᵀ. Its
maximisers s_i are a dual point, with a certified gap. A smooth loss needs no h. V is in the span of X's rows: where
there are more features than rows, it has as many coordinates as rows.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from proxsvm.losses.base import Atom
from proxsvm.losses.hulls import ClosedHull, EntropyBox, EntropySimplex

STEPS = 25  # about as many as a problem takes
CG_STEPS = 30  # of the method of conjugate gradients
MAX_SIDE, MAX_ENTRIES = 2000, 50_000_000  # of the Hessian, K·F, and of X as a dense matrix
SHRINK, FLOOR = 0.3, 1e-3  # h after a solved φ, and its least value relative to the first, below which rounding counts
SOLVED, MAX_TRIES = 1e-9, 30  # φ is solved once a step promises less than this fraction of its value, or by rounding
IDLE = 12  # steps without a better point, after which rounding is what is left


def work(n: int, M: int, F: int) -> float:
    """The time of a solve, in multiplications of a block step; inf where a matrix would be too large."""
    side = min(n, F)
    if M * side > MAX_SIDE or n * F > MAX_ENTRIES:
        return float("inf")
    products = M * (M + 1) / 2 * n * side**2 + (M * side) ** 3 / 3  # about five times as fast
    return STEPS * (products / 5 + 50 * n * M + 1e6) + n * max(F - n, 0) * side


def is_floating(x: Any) -> bool:
    """Whether x is a tensor of floating-point numbers."""
    return isinstance(x, Tensor) and x.is_floating_point()


class Newton:
    """Newton steps from a dual point ``s``, [n, M]. ``X``: [n, F]; ``u``: [n, M], the scores at s = 0; all float64.

    ``shape`` is that in which the hull takes s and v.
    """

    def __init__(self, hull: Any, X: Tensor, p: Tensor, eta: float, u: Tensor, s: Tensor, shape: torch.Size) -> None:
        tensors = {f.name: x.double() for f in fields(hull) if is_floating(x := getattr(hull, f.name))}
        self.hull: Any = replace(hull, **tensors)
        self.p, self.eta, self.u, self.shape = p, eta, u, shape
        n, F = X.shape
        self.X = X if n >= F else torch.linalg.qr(X.t(), mode="r").R.t()  # in an orthonormal basis of the rows
        self.center, self.V = s, self._displacement(s)
        self.U, nothing = u + self.X @ self.V.t(), torch.zeros_like(self.V)
        if self._value(self.V, self.U) > self._value(nothing, u):  # block descent may be far from the primal solution
            self.V, self.U = nothing, u
        self.root: tuple[Tensor, Tensor] | None
        self.h = self.first = float((p * self._best(u).b(self._shaped(u))).sum() / p.sum()) or 1.0
        self.floor, self.tries = FLOOR * self.first, 0
        self.iterative, self.root = True, None  # conjugate gradients, and the factor of their preconditioner

    def _displacement(self, s: Tensor) -> Tensor:
        return -self.eta * (self.p[:, None] * s).t() @ self.X

    def _shaped(self, x: Tensor) -> Tensor:
        return x.reshape(self.shape)

    def _best(self, U: Tensor) -> Atom:
        found: Atom = self.hull.best(self._shaped(U))
        return found

    def _respond(self, U: Tensor) -> Tensor:
        """s at the scores U."""
        if isinstance(self.hull, ClosedHull):
            atom = self.hull.nearest(self._shaped(U + self.h * self.center), U.new_tensor(self.h))
        else:
            atom = self._best(U)
        assert isinstance(atom.s, Tensor)
        return atom.s.reshape(U.shape)

    def _curvature(self, s: Tensor) -> Tensor:
        """∂s/∂v, ``[M, n, M]``."""
        n, M = s.shape
        if isinstance(self.hull, ClosedHull):
            rows = torch.eye(M, dtype=s.dtype)[:, None].expand(M, n, M).reshape(M, *self.shape)
            return self.hull.tangent(self._shaped(s), rows).reshape(M, n, M) / self.h
        if isinstance(self.hull, EntropyBox):
            low, high = (s + self.hull.a.reshape(n, M)), (self.hull.b.reshape(n, M) - s)
            return torch.diag_embed(low * high / (low + high).clamp(min=1e-300)).transpose(0, 1)
        if not isinstance(self.hull, EntropySimplex):  # a box under a paraboloid
            free = (s == ((self.U - self.hull.center.reshape(n, M)) / self.hull.ridge)).to(s)
            return torch.diag_embed(free).transpose(0, 1) / float(self.hull.ridge)
        alpha, mass = s + self.hull.q, self.hull.q.sum(1, keepdim=True)
        outer = alpha.t()[:, :, None] * (alpha / torch.where(mass > 0, mass, 1.0))
        return torch.diag_embed(alpha).transpose(0, 1) - outer

    def _direction(self, s: Tensor, gradient: Tensor) -> Tensor:
        """−Hessian⁻¹ gradient, up to a tenth for a smooth loss."""
        if isinstance(self.hull, EntropySimplex) and self.iterative:
            found = self._conjugate_gradients(s + self.hull.q, gradient)
            if found is not None or gradient.numel() > MAX_SIDE:
                return gradient / -self.eta if found is None else found
            self.iterative = False  # the weights of the samples differ by too much
        return self._factorised(s, gradient)

    def _conjugate_gradients(self, alpha: Tensor, gradient: Tensor) -> Tensor | None:
        """−Hessian⁻¹ gradient under the entropy, preconditioned by 1/η + XᵀpX/K, nearly the Hessian at 0."""
        K, share = len(gradient), alpha / alpha.sum(1, keepdim=True).clamp(min=1e-300)
        if self.root is None:
            gram = self.X.t() @ (self.p[:, None] * self.X) / K
            gram.diagonal().add_(1 / self.eta)
            scale = gram.diagonal().rsqrt()
            L, failed = torch.linalg.cholesky_ex(scale[:, None] * gram * scale)
            if failed:
                return None
            self.root = scale, L
        scale, L = self.root
        d, r = torch.zeros_like(gradient), -gradient
        z = toward = scale * torch.cholesky_solve((scale * r).t(), L).t()
        now = first = (r * z).sum()
        for _ in range(CG_STEPS):
            moved = self.X @ toward.t()
            curved = self.p[:, None] * alpha * (moved - (share * moved).sum(1, keepdim=True))
            image = curved.t() @ self.X + toward / self.eta
            step = now / (toward * image).sum()
            d, r = d + step * toward, r - step * image
            z = scale * torch.cholesky_solve((scale * r).t(), L).t()
            now, before = (r * z).sum(), now
            if now <= 1e-2 * first:
                return d
            toward = z + now / before * toward
        return None

    def _factorised(self, s: Tensor, gradient: Tensor) -> Tensor:
        """−Hessian⁻¹ gradient; the Hessian is scaled to a unit diagonal first, whatever the features' scales are."""
        M, F = gradient.shape
        curvature, hessian = self._curvature(s), torch.zeros(M, F, M, F, dtype=s.dtype)
        for k in range(M):
            for l in range(k + 1):
                weight = self.p * curvature[k, :, l]
                rows = weight.nonzero()[:, 0]
                X = self.X[rows]
                hessian[k, :, l] = X.t() @ (weight[rows, None] * X)
                hessian[l, :, k] = hessian[k, :, l]
        H = hessian.reshape(M * F, M * F)
        H.diagonal().add_(1 / self.eta)
        scale = H.diagonal().rsqrt()
        H = scale[:, None] * H * scale
        for ridge in (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-6):  # rounding may leave it singular
            H.diagonal().add_(ridge)
            L, failed = torch.linalg.cholesky_ex(H)
            if not failed:
                return -(scale * torch.cholesky_solve((scale * gradient.reshape(-1))[:, None], L)[:, 0]).reshape(M, F)
        return -self.eta * gradient  # of the regularisation alone: the features overflow

    def step(self) -> Tensor:
        """One Newton step with a line search; returns the new s."""
        s = self._respond(self.U)
        d = self._direction(s, (self.V - self._displacement(s)) / self.eta)
        moved, t = self.X @ d.t(), 1.0
        promise = -self._slope(0.0, d, moved)
        low, high = 0.0, float("inf")
        for _ in range(60):  # the slope has kinks, where Newton's step may overshoot
            ahead = self._slope(t, d, moved)
            if -0.5 * promise <= ahead <= 0.01 * promise:  # φ is convex: where the slope is negative, it has fallen
                break
            low, high = (t, high) if ahead < 0 else (low, t)
            t = 2 * t if high == float("inf") else (low + high) / 2
        else:
            t = low
        self.V, self.U = self.V + t * d, self.U + t * moved
        s = self._respond(self.U)
        self.tries += 1
        if promise <= SOLVED * self._value(self.V, self.U) or self.tries == MAX_TRIES:
            self.center, self.h, self.tries = s, max(SHRINK * self.h, self.floor), 0
        return s

    def _value(self, V: Tensor, U: Tensor) -> float:
        """P at the displacement V, whose scores are U."""
        losses = self._best(U).b(self._shaped(U))
        return float((self.p * losses).sum() + V.square().sum() / (2 * self.eta))

    def relax(self) -> bool:
        """Raise h, because s has the rounding errors of v/h; False where it is as large as at first already."""
        if self.floor >= self.first:
            return False
        self.h = self.floor = min(10 * self.floor, self.first)
        return True

    def _slope(self, t: float, d: Tensor, moved: Tensor) -> float:
        """The derivative of φ along d, at t."""
        s = self._respond(self.U + t * moved)
        return float(((self.V + t * d) * d).sum() / self.eta + (self.p[:, None] * s * moved).sum())

    def dual(self, s: Tensor) -> float:
        """D of the dual point s, up to that of (0, 0): Σ p (⟨s, u⟩ + c) − ‖V(s)‖²/(2η)."""
        offset = self.hull.lift(self._shaped(s))
        assert offset is not None
        lam = self.p @ ((s * self.u).sum(1) + offset)
        return float(lam - self._displacement(s).square().sum() / (2 * self.eta))
