"""Logistic regression, in the primal.

    P(W) = ½ρ‖W‖² + Σ_i c_i ℓ(W x_i; y_i),     G = ∇P(W) = ρW + Σ_i c_i s_i x_iᵀ,     s_i = ∇ℓ(W x_i; y_i)

The gradients s_i are a dual point, whose gap is P(W) − D(s) = ‖G‖²/(2ρ), because ℓ(u) = ⟨s, u⟩ + c at its own u: an
evaluation of P certifies itself. L-BFGS minimises P, from the columns' curvature at W = 0, or, where the losses
outweigh ½ρ‖W‖², from the inverse Hessian there, which also raises D. Once it has taken as long as a few steps of
Newton's method would, or rounding stops it, these follow, by conjugate gradients where the Hessian is large. The line
search needs no product with X: scores are linear in W.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array
from proxsvm.losses.hulls import EntropyBox
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
ASPECT = 16  # features for each output, up to which it takes no longer than a few evaluations
ROWS = 40  # for each feature: with fewer, classes are often separable, where the Hessian at W = 0 says little
CLOSE = 0.05  # times the gap that is wanted: P is near its minimum where the model at W = 0 decreases by less
HALVINGS = 40  # of a step, before rounding is what is left


class Logistic:
    """P of the features X, ``[n, F]``, and the targets of an :class:`EntropySimplex` or :class:`EntropyBox`.

    ``c``: the weight of each sample's loss, ``[n]``, of the sum η; ``progress`` is told P/η and D/η. Inside, scores are
    ``[K, n]``. Two classes are one output, W = w₁ − w₀, with ρ = ½: then w₁ = −w₀ = W/2.
    """

    def __init__(self, X: Any, hull: Any, c: Array, eta: float, progress: Progress) -> None:
        self.X, self.eta, self.progress, self.iterations = X, eta, progress, 0
        self.box, self.sparse = isinstance(hull, EntropyBox), hasattr(X, "tocoo")
        q = to_numpy(hull.a if self.box else hull.q).reshape(len(c), -1)
        mass = q + to_numpy(hull.b).reshape(q.shape) if self.box else q.sum(1, keepdims=True)
        self.pair = not self.box and q.shape[1] == 2
        if self.pair:
            self.box, q = True, q[:, 1:]
        self.rho = 0.5 if self.pair else 1.0
        self.q, self.mass = (c[:, None] * q).T.copy(), (c[:, None] * mass).T.copy()
        self.shape = len(self.q), X.shape[1]
        self.flat = 1 / 4 if self.box else 1 / len(self.q)  # the curvature of the loss at equal scores
        self.close = CLOSE
        self.pairs: list[tuple[Array, Array, float]] = []  # of L-BFGS: changes of W and of G, and their product
        self.D = eta * float(progress.dual_of_start)

    def minimise(self, start: Array | None, max_iter: int) -> None:
        """Until the gap is small enough, or rounding is what is left; ``start``: W."""
        n, side = self.q.shape[1], math.prod(self.shape)
        hessian = n * side**2 / (2 * len(self.q) if self.box else 2) + side**3 / 3
        budget = 0 if hessian < SMALL else int(STEPS * hessian / (2 * n * side + 5e5))  # of L-BFGS
        self.factorises = not self.sparse and side <= MAX_SIDE
        budget = min(budget, PATIENCE) if self.factorises else PATIENCE
        self.W = np.zeros(self.shape) if start is None else start
        self.U = np.zeros_like(self.q) if start is None else self._scores(start)
        self.alpha, self.P = self._value(self.W, self.U)
        self.G = self._gradient()
        self.inverse = self._inverse(budget)
        falls = True
        while self._goes_on(max_iter) and falls:
            self.iterations += 1
            falls = self.iterations <= budget and self._move(-self._quasi_newton(self.G))
            if not falls:  # also where rounding stops L-BFGS early
                budget, falls = 0, self._move(self._newton())

    def _goes_on(self, max_iter: int) -> bool:
        self.D = max(self.D, self.P - float(np.vdot(self.G, self.G)) / (2 * self.rho))
        enough = float(self.progress.enough(self.D, self.P - self.D))
        if self.inverse.ndim == 2 and enough < self.P - self.D:
            above = float(np.vdot(self.G, self._precondition(self.G))) / 2  # of the model at W = 0
            if above < self.close * enough:
                self._raise_dual(enough)
        stop = self.progress.stop(self.iterations, self.D / self.eta, (self.P - self.D) / self.eta)
        return not stop and self.iterations < max_iter

    def _move(self, d: Array) -> bool:
        """A step along d: that of its curvature at W, or a half, a quarter, ...; returns whether P decreases.

        Of Newton's direction, the first one is 1.
        """
        Z = self._scores(d)
        slope = float(np.vdot(self.G, d))
        first = -slope / float(self.rho * np.vdot(d, d) + np.vdot(Z, self._curve(Z)))
        for t in first * 0.5 ** np.arange(HALVINGS):
            W, U = self.W + t * d, self.U + t * Z
            alpha, P = self._value(W, U)
            if self.P + 1e-4 * t * slope >= P - 1e-15 * abs(self.P):  # the gap may fall where P does not
                break
        else:
            return False
        s, G, falls = W - self.W, self.G, P < self.P
        self.W, self.U, self.alpha, self.P = W, U, alpha, P
        self.G = self._gradient()
        y = self.G - G
        self.pairs = [*self.pairs[1 - MEMORY :], (s, y, float(np.vdot(s, y)))]
        return falls

    def _scores(self, W: Array) -> Array:
        return np.ascontiguousarray((self.X @ W.T).T) if self.sparse else W @ self.X.T

    def _value(self, W: Array, U: Array) -> tuple[Array, float]:
        """The probabilities, and P, from the distances to the largest score, which keep the digits of small losses."""
        top = np.maximum(U, 0.0) if self.box else U.max(0)
        below = U - top
        if self.box:
            alpha, logs = special.expit(U), np.log1p(np.exp(-np.abs(U)))
            linear = np.vdot(self.q, below) - np.vdot(self.mass - self.q, top)
        else:
            alpha = np.exp(below)
            total = alpha.sum(0)
            alpha, logs, linear = alpha / total, np.log(total), np.vdot(self.q, below)
        return alpha, float(np.vdot(self.mass, logs) - linear + self.rho / 2 * np.vdot(W, W))

    def _gradient(self) -> Array:
        G: Array = self.rho * self.W + (self.mass * self.alpha - self.q) @ self.X
        return G

    def _curve(self, Z: Array) -> Array:
        """The Hessian of the losses by the scores, times Z."""
        curve: Array = self.mass * self.alpha * (Z * (1 - self.alpha) if self.box else Z - (self.alpha * Z).sum(0))
        return curve

    def _inverse(self, budget: int) -> Array:
        """What L-BFGS starts from: the inverse of the Hessian at W = 0, ``[F, F]``, or of its diagonal, ``[F]``."""
        X, weight = self.X, self.flat * self.mass.max(0)
        diagonal: Array = self.rho + weight @ (X.multiply(X) if self.sparse else np.square(X))
        small = not self.sparse and self.shape[1] <= min(ASPECT * self.shape[0], len(weight) / ROWS)
        if budget == 0 or not small or diagonal.mean() < STIFF * self.rho:
            return 1 / diagonal
        root = np.sqrt(weight)[:, None] * X
        return -self._solve(root.T @ root, np.eye(len(diagonal)))

    def _raise_dual(self, enough: float) -> None:
        """D at dual points next to s, where ‖G‖² is still large because C is, until the gap is ``enough``.

        With the curvature at equal scores, the change of s by the scores of d = −inverse · G makes G = 0 at W + d. What
        it moves out of the hull is clipped, which a second round repairs.
        """
        W, G, alpha = self.W, self.G, self.alpha
        for _ in range(2):
            d = -G @ self.inverse
            Z = self._scores(d)
            alpha = np.clip(alpha + self.flat * (Z if self.box else Z - Z.mean(0)), 1e-300, 1.0)
            alpha /= 1.0 if self.box else alpha.sum(0)
            entropy = -alpha * np.log(alpha) - (special.xlog1py(1 - alpha, -alpha) if self.box else 0.0)
            product = (self.mass * alpha - self.q) @ self.X
            self.D = max(self.D, float((self.mass * entropy).sum() - np.vdot(product, product) / (2 * self.rho)))
            if enough >= self.P - self.D:
                return
            W = W + d
            G = self.rho * W + product
        self.close /= 10  # nearer to the minimum it may be enough

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
        return d * self.inverse if self.inverse.ndim == 1 else d @ self.inverse

    def _newton(self) -> Array:
        """−Hessian⁻¹ G."""
        if not self.factorises:
            return self._conjugate_gradients()
        (K, F), X = self.shape, self.X
        curve = self.mass * self.alpha * (1 - self.alpha if self.box else 1)
        blocks = [(X.T * weight) @ X for weight in curve]
        if self.box:  # the outputs are independent
            return np.stack([self._solve(H, g) for H, g in zip(blocks, self.G, strict=True)])
        root = ((np.sqrt(self.mass) * self.alpha)[:, None] * X.T).reshape(K * F, -1)
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
            change = self.rho * step + self._curve(self._scores(step)) @ self.X
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
        for ridge in (0.0, 1e-14, 1e-12, 1e-9, 1e-6):
            diagonal += ridge
            _, d, failed = lapack.dposv(H, -(scale * g).T)
            if not failed:
                break
        solution: Array = scale * d.T
        return solution

    @property
    def weight(self) -> Array:
        """W of all classes, ``[K, F]``."""
        return np.concatenate([-self.W, self.W]) / 2 if self.pair else self.W
