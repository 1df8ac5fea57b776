"""Smooth losses of a linear model, in the primal: likelihoods, and losses whose hull is under a paraboloid.

    P(W) = ½ρ‖W‖² + Σ_i c_i ℓ(W x_i; y_i),     G = ∇P(W) = ρW + Σ_i c_i s_i x_iᵀ,     s_i = ∇ℓ(W x_i; y_i)

The gradients s_i are a dual point, whose gap is P(W) − D(s) = ‖G‖²/(2ρ), because ℓ(u) = ⟨s, u⟩ + c at its own u: an
evaluation of P certifies itself. L-BFGS minimises P, from the columns' curvature at W = 0, or, where the losses
outweigh ½ρ‖W‖², from the inverse Hessian there; in single precision first, until the gap is nearly small enough. Near
the minimum, where a large C leaves ‖G‖² large, that inverse also raises D. Once it has taken as long as a few steps of
Newton's method would, or rounding stops it, these follow, by conjugate gradients where the Hessian is large. The line
search needs no product with X: scores are linear in W.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array
from proxsvm.losses.hulls import Box, EntropyBox, EntropySimplex
from proxsvm.solvers._arrays import to_numpy
from proxsvm.solvers.base import Progress

lapack: Any = load("scipy.linalg.lapack", extra="estimators")
special: Any = load("scipy.special", extra="estimators")

MEMORY = 20  # pairs of L-BFGS
STEPS = 8  # of Newton's method, about as many as a problem takes
SMALL = 3e6  # multiplications of a Hessian that take no longer than an evaluation
PATIENCE = 400  # evaluations of L-BFGS, after which Newton's method follows whatever it costs
MAX_SIDE, PRODUCTS = 2000, 300  # of the Hessian that is factorised; products with one that is not
STIFF = 200  # times ρ: the mean curvature from which the inverse Hessian at W = 0 pays
CHEAP = 6  # evaluations, which the inverse Hessian at W = 0 may take
ROWS = 40  # for each feature: with fewer, classes may be separable, where the Hessian at W = 0 says little
KEPT = 0.5  # of the curvature after the first step, where they are not
FIRST = 5  # evaluations before the Hessian at W says more than that at 0
CLOSE = 0.1  # times the gap that is wanted: P is near its minimum where L-BFGS expects to decrease it by less
CHUNK = 2**16  # entries of X that stay in the cache with their products
HALVINGS = 40  # of a step, before rounding is what is left


class Likelihood:
    """The losses of an :class:`EntropySimplex`, or of an :class:`EntropyBox`, whose outputs are ``alone``.

    Scores U are ``[K, n]``, and the weighted gradients s = mα − q, with the probabilities α of the last U.
    """

    def __init__(self, q: Array, mass: Array, alone: bool) -> None:
        self.q, self.mass, self.alone, self.outputs = q, mass, alone, len(q)
        self.steepest = 1 / 4 if alone else 1 / len(q)  # the curvature at equal scores
        # Memory that is used again and again: fresh pages take as long as the arithmetic.
        self.alpha, self.buffer = np.empty_like(q), np.empty_like(q)

    def astype(self, dtype: Any) -> Likelihood:
        return Likelihood(self.q.astype(dtype), self.mass.astype(dtype), self.alone)

    def value(self, U: Array) -> float:
        """Their weighted sum, from the distances to the largest score, which keep the digits of small losses."""
        top = np.maximum(U, 0.0) if self.alone else U.max(0)
        below = np.subtract(U, top, out=self.alpha)
        linear = float(np.vdot(self.q, below))
        if self.alone:
            linear -= float(np.vdot(self.mass - self.q, top))
            logs = np.log1p(np.exp(-np.abs(U)))
            special.expit(U, out=self.alpha)
        else:
            total = np.exp(below, out=below).sum(0)
            logs = np.log(total)
            self.alpha /= total
        return float(np.vdot(self.mass, logs)) - linear

    def slopes(self, alpha: Array) -> Array:
        """s; overwritten by the next call of a method."""
        s = np.multiply(self.mass, alpha, out=self.buffer)
        s -= self.q
        return s

    def curve(self, Z: Array) -> Array:
        """The Hessian times Z; overwritten by the next call of a method."""
        curve = np.multiply(self.alpha, Z, out=self.buffer)
        curve -= self.alpha * (curve if self.alone else curve.sum(0))
        curve *= self.mass
        return curve

    def diagonal(self) -> Array:
        """That of the Hessian."""
        diagonal: Array = self.mass * self.alpha * (1 - self.alpha)
        return diagonal

    def shift(self, alpha: Array, Z: Array) -> tuple[Array, float]:
        """α after a change of the scores by Z, with the curvature at equal scores, and clipped; and Σ c of its s."""
        if not self.alone:
            Z -= Z.mean(0)
        Z *= self.steepest
        Z += alpha
        alpha = np.clip(Z, np.finfo(Z.dtype).tiny, 1.0, out=Z)
        if not self.alone:
            alpha /= alpha.sum(0)
        entropy = np.log(alpha, out=self.buffer)
        entropy *= -alpha
        if self.alone:
            entropy -= special.xlog1py(1 - alpha, -alpha)
        return alpha, float(np.vdot(self.mass, entropy if self.alone else entropy.sum(0)))


class Paraboloid:
    """The losses of a :class:`Box` with a ridge: s = cα, with α the gradient at the last U; as in ``Likelihood``."""

    alone = True

    def __init__(self, mass: Array, low: Array, high: Array, center: Array, band: float, ridge: float) -> None:
        self.mass, self.low, self.high, self.center, self.band, self.ridge = mass, low, high, center, band, ridge
        self.steepest, self.outputs = 1 / ridge, len(center)

    def astype(self, dtype: Any) -> Paraboloid:
        mass, low, high, center = (x.astype(dtype) for x in (self.mass, self.low, self.high, self.center))
        return Paraboloid(mass, low, high, center, self.band, self.ridge)

    def value(self, U: Array) -> float:
        residual = U - self.center
        shrunk = residual - np.clip(residual, -self.band, self.band) if self.band else residual
        self.alpha = np.clip(shrunk / self.ridge, self.low, self.high)
        return self._worth(self.alpha, residual)

    def _worth(self, alpha: Array, residual: Array) -> float:
        """Σ c (⟨α, residual⟩ − band ‖α‖₁ − (ridge/2) ‖α‖²)."""
        worth = alpha * (residual - self.ridge / 2 * alpha)
        worth -= self.band * np.abs(alpha)
        return float((worth @ self.mass[0]).sum())

    def slopes(self, alpha: Array) -> Array:
        return self.mass * alpha

    def curve(self, Z: Array) -> Array:
        return self.diagonal() * Z

    def diagonal(self) -> Array:
        free = (self.low < self.alpha) & (self.alpha < self.high)
        if self.band:
            free &= self.alpha != 0
        return self.mass / self.ridge * free

    def shift(self, alpha: Array, Z: Array) -> tuple[Array, float]:
        alpha = np.clip(alpha + Z / self.ridge, self.low, self.high)
        return alpha, self._worth(alpha, -self.center)


class Primal:
    """P of the features X, ``[n, F]``, and the targets of a ``hull``.

    ``c``: the weight of each sample's loss, ``[n]``, of the sum η; ``progress`` is told P/η and D/η. Two classes of a
    likelihood are one output, W = w₁ − w₀, with ρ = ½: then w₁ = −w₀ = W/2.
    """

    def __init__(self, X: Any, hull: Any, c: Array, eta: float, progress: Progress) -> None:
        self.X, self.eta, self.progress, self.iterations = X, eta, progress, 0
        self.sparse, self.single = hasattr(X, "tocoo"), False
        self.pair = isinstance(hull, EntropySimplex) and hull.q.shape[1] == 2
        self.rho = 0.5 if self.pair else 1.0

        def rows(x: Any) -> Array:
            return np.ascontiguousarray(to_numpy(x).reshape(len(c), -1).T)

        if isinstance(hull, Box):
            bounds = rows(hull.low), rows(hull.high), rows(hull.center)
            self.loss: Any = Paraboloid(c[None], *bounds, hull.band, hull.ridge)
        elif isinstance(hull, EntropyBox):
            self.loss = Likelihood(c * rows(hull.a), c * rows(hull.a + hull.b), True)
        else:
            q = c * rows(hull.q)
            self.loss = Likelihood(q[self.pair :], q.sum(0, keepdims=True), self.pair)
        self.shape = self.loss.outputs, X.shape[1]
        self.D, self.first = eta * float(progress.dual_of_start), 0.0  # the first gap
        self.at_zero: Array | None = None  # the inverse of the Hessian at W = 0
        self.left = 0.0  # the fraction of the gap that was left when the dual was raised
        self.pairs: list[tuple[Array, Array, float]] = []  # of L-BFGS: changes of W and of G, and their product

    def minimise(self, start: Array | None, max_iter: int) -> None:
        """Until the gap is small enough, or rounding is what is left; ``start``: W."""
        (K, F), n = self.shape, self.X.shape[0]
        side, blocks = (F, K) if self.loss.alone else (K * F, 1)
        evaluation, hessian = 2 * n * K * F + 5e5, blocks * side**2 * (n / 2 + side / 3)
        self.gram = (n * F**2 / 4 + 2 * F**3) / evaluation  # the time of one in single precision and its inverse
        self.factorises = not self.sparse and side <= MAX_SIDE
        budget = 0 if hessian < SMALL else STEPS * hessian / evaluation  # of L-BFGS
        budget = min(budget, PATIENCE) if self.factorises else PATIENCE
        self.W = np.zeros(self.shape) if start is None else start
        self.exact = self.X, self.loss
        size = n if self.sparse else max(CHUNK // F, F)
        self.chunks = [slice(i, i + size) for i in range(0, n, size)]
        if budget:
            self.rough = self.X if self.sparse else self.X.astype(np.float32)
            self.flat = self.loss.steepest * self.loss.mass.max(0)
            diagonal = np.full(F, self.rho)
            for rows in self.chunks:
                part = self.rough[rows]
                diagonal += self.flat[rows] @ (part.multiply(part) if self.sparse else np.square(part))
            self.inverse = 1 / diagonal
            self.single = not self.sparse and bool(np.isfinite(diagonal).all())
        self._evaluate_with(*((self.rough, self.loss.astype(np.float32)) if self.single else self.exact))
        self.G = self._gradient(self.loss.alpha)
        stiff = self.single and self.gram <= CHEAP and np.mean(diagonal) >= STIFF * self.rho
        chosen, due, curvature = int(n < F * ROWS), math.inf, 0.0  # iterations at which the inverse may change
        while self.iterations < budget:
            if stiff and self.iterations <= chosen:
                before, curvature = curvature, self.loss.diagonal().mean()
                if self.iterations == chosen and curvature > KEPT * before:
                    self.inverse = self.at_zero = self._inverse(self.flat[None])
                    due = max(FIRST, K * self.gram) if K > 1 else math.inf
            elif self.iterations >= due:
                self.inverse, due = self._inverse(self.loss.diagonal()), math.inf
            d = -self._quasi_newton(self.G)
            if self._is_done(max_iter, -float(np.vdot(self.G, d)) / 2):
                return
            if not self._move(d):
                break
        if self.single:
            self._to_double(0.0, None)
        while not self._is_done(max_iter, math.inf) and self._move(self._newton()):
            pass

    def _evaluate_with(self, X: Any, loss: Any) -> None:
        """P at W, in the precision of X and the loss."""
        self.X, self.loss = X, loss
        self.U = self._scores(self.W) if self.W.any() else np.zeros((self.shape[0], X.shape[0]), X.dtype)
        self.next_U = np.empty_like(self.U)
        self.P = self._value(self.W, self.U)

    def _to_double(self, enough: float, alpha: Array | None) -> None:
        """P at W and D at alpha in double precision; if their gap is not ``enough``, the gradient, which is another."""
        self.single = False
        self._evaluate_with(*self.exact)
        if alpha is not None:
            self.D = max(self.D, self._dual_at(alpha, np.zeros_like(self.U))[1])
        if not enough >= self.P - self.D:  # also where single precision overflowed
            self.G = self._gradient(self.loss.alpha)
            self.D = max(self.D, self.P - self._own_gap())

    def _own_gap(self) -> float:
        """That of the gradients at W."""
        return float(np.vdot(self.G, self.G)) / (2 * self.rho)

    def _is_done(self, max_iter: int, decrease: float) -> bool:
        """Whether the gap is small enough, perhaps of another dual point; ``decrease``: what the next step promises."""
        gap, alpha = self._own_gap(), None
        self.first = self.first or 2 * gap
        D = self.P - gap if self.single else max(self.D, self.P - gap)
        enough = self.eta * float(self.progress.enough(D / self.eta, (self.P - D) / self.eta))
        if not self.sparse and decrease < CLOSE * enough < CLOSE * (self.P - D) and self.left * gap < enough:
            steps = self.iterations * math.log(gap / enough) / max(math.log(self.first / gap), 1e-9)  # at this rate
            if steps > 1 + self.gram * (self.at_zero is None):
                alpha, raised = self._raise_dual(enough)
                self.left, D = (self.P - raised) / gap, max(D, raised)
        last = self.iterations == max_iter
        if self.single and (last or not enough < self.P - D):
            self._to_double(enough, alpha)
            D = self.D
        if not self.single:
            self.D = D
        return self.progress.stop(self.iterations, D / self.eta, (self.P - D) / self.eta) or last

    def _move(self, d: Array) -> bool:
        """A step along d: that of its curvature at W, or a half, a quarter, ...; returns whether P decreases.

        Of Newton's direction, the first one is 1. Where single precision hides the decrease, double precision follows.
        """
        self.iterations += 1
        Z = self._scores(d)
        slope = float(np.vdot(self.G, d))
        first = -slope / float(self.rho * np.vdot(d, d) + np.vdot(Z, self.loss.curve(Z)))
        slack = 0.0 if self.single else 1e-15 * abs(self.P)  # the gap may fall where P does not
        for t in first * 0.5 ** np.arange(HALVINGS):
            W = self.W + t * d
            np.multiply(Z, t, out=self.next_U)
            self.next_U += self.U
            P = self._value(W, self.next_U)
            if self.P + 1e-4 * t * slope >= P - slack:
                break
        else:
            if self.single:
                self._to_double(0.0, None)
                return True
            self._value(self.W, self.U)
            return False
        s, G, falls = W - self.W, self.G, P < self.P
        self.W, self.P, self.U, self.next_U = W, P, self.next_U, self.U
        self.G = self._gradient(self.loss.alpha)
        y = self.G - G
        if (product := float(np.vdot(s, y))) > 0:
            self.pairs = [*self.pairs[1 - MEMORY :], (s, y, product)]
        return falls

    def _scores(self, W: Array) -> Array:
        W = W.astype(self.X.dtype, copy=False)
        return np.ascontiguousarray((self.X @ W.T).T) if self.sparse or self.single else W @ self.X.T

    def _value(self, W: Array, U: Array) -> float:
        """P."""
        value: float = self.loss.value(U) + self.rho / 2 * float(np.vdot(W, W))
        return value

    def _gradient(self, alpha: Array) -> Array:
        G: Array = self.rho * self.W + self.loss.slopes(alpha) @ self.X
        return G

    def _inverse(self, weights: Array) -> Array:
        """(ρ + Σ_i w_i x_i x_iᵀ)⁻¹ for each w of ``weights``, nearly, from products in single precision."""
        H = np.zeros((len(weights), self.shape[1], self.shape[1]))
        roots = np.sqrt(weights.astype(np.float32))[:, :, None]
        for rows in self.chunks:
            for sums, root in zip(H, roots[:, rows], strict=True):
                part = root * self.rough[rows]
                sums += part.T @ part
        return np.stack([-self._solve(h, np.eye(len(h))) for h in H])

    def _dual_at(self, alpha: Array, Z: Array) -> tuple[Array, float, Array]:
        """The α that a change of the scores by Z gives, its D, and Σ_i c_i s_i x_iᵀ."""
        alpha, worth = self.loss.shift(alpha, Z)
        product = self.loss.slopes(alpha) @ self.X
        return alpha, worth - float(np.vdot(product, product)) / (2 * self.rho), product

    def _raise_dual(self, enough: float) -> tuple[Array, float]:
        """An α next to the one at W, where ‖G‖² is still large because C is, and its D.

        With the curvature at equal scores, the change of s by the scores of d = −inverse · G makes G = 0 at W + d. What
        it moves out of the hull is clipped, which further rounds repair.
        """
        if self.at_zero is None:
            self.at_zero = self._inverse(self.flat[None])
        W, G, alpha, D = self.W, self.G, self.loss.alpha, -math.inf
        while True:
            d = -G @ self.at_zero[0]
            new, raised, product = self._dual_at(alpha, self._scores(d))
            if not self.P - raised <= 0.5 * (self.P - D):
                return alpha, D
            alpha, D = new, raised
            if enough >= self.P - D:
                return alpha, D
            W = W + d
            G = self.rho * W + product

    def _quasi_newton(self, g: Array) -> Array:
        """Hessian⁻¹ g, nearly: the two loops of L-BFGS."""
        d, parts = g.copy(), []
        for s, y, product in reversed(self.pairs):
            parts.append(np.vdot(s, d) / product)
            d -= parts[-1] * y
        d = self._precondition(d)
        if self.pairs:
            _, y, product = self.pairs[-1]
            d *= product / np.vdot(y, self._precondition(y))
        for s, y, product in self.pairs:
            d += (parts.pop() - np.vdot(y, d) / product) * s
        return d

    def _precondition(self, d: Array) -> Array:
        if self.inverse.ndim == 1:
            return d * self.inverse
        return d @ self.inverse[0] if len(self.inverse) == 1 else (d[:, None] @ self.inverse)[:, 0]

    def _newton(self) -> Array:
        """−Hessian⁻¹ G."""
        if not self.factorises:
            return self._conjugate_gradients()
        (K, F), X = self.shape, self.X
        alone, mass = self.loss.alone, self.loss.mass
        blocks = [(X.T * weight) @ X for weight in (self.loss.diagonal() if alone else mass * self.loss.alpha)]
        if alone:
            return np.stack([self._solve(H, g) for H, g in zip(blocks, self.G, strict=True)])
        root = ((np.sqrt(mass) * self.loss.alpha)[:, None] * X.T).reshape(K * F, -1)
        H = -(root @ root.T).reshape(K, F, K, F)
        for k, block in enumerate(blocks):
            H[k, :, k] += block
        return self._solve(H.reshape(K * F, K * F), self.G.ravel()).reshape(K, F)

    def _conjugate_gradients(self) -> Array:
        """−Hessian⁻¹ G up to a tenth of G, preconditioned by L-BFGS."""
        r, before = -self.G, 1.0
        d, step = np.zeros_like(r), np.zeros_like(r)
        for _ in range(PRODUCTS):
            z = self._quasi_newton(r)
            product = float(np.vdot(r, z))
            step = z + product / before * step
            change = self.rho * step + self.loss.curve(self._scores(step)) @ self.X
            length, before = product / np.vdot(step, change), product
            d += length * step
            r -= length * change
            if np.vdot(r, r) <= 0.01 * np.vdot(self.G, self.G):
                break
        return d

    def _solve(self, H: Array, g: Array) -> Array:
        """−(H + ρ)⁻¹ g for each row of g, scaled to a unit diagonal; what rounding leaves singular gets a ridge."""
        diagonal = H.reshape(-1)[:: len(H) + 1]
        diagonal += self.rho
        scale = 1 / np.sqrt(diagonal)
        H *= scale
        H *= scale[:, None]
        for ridge in (0.0, 1e-14, 1e-12, 1e-9, 1e-6, 1e-4):
            diagonal += ridge
            _, d, failed = lapack.dposv(H, -(scale * g).T)
            if not failed:
                break
        solution: Array = scale * d.T
        return solution

    @property
    def weight(self) -> Array:
        """W of all outputs, ``[K, F]``."""
        return np.concatenate([-self.W, self.W]) / 2 if self.pair else self.W
