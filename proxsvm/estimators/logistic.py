"""Logistic regression, in the primal.

    P(W) = ½ρ‖W‖² + Σ_i c_i ℓ(W x_i; y_i),     G = ∇P(W) = ρW + Σ_i c_i s_i x_iᵀ,     s_i = ∇ℓ(W x_i; y_i)

The gradients s_i are a dual point, whose gap is P(W) − D(s) = ‖G‖²/(2ρ), because ℓ(u) = ⟨s, u⟩ + c at its own u: an
evaluation of P certifies itself. L-BFGS minimises P, from the columns' curvature at W = 0, or, where the losses
outweigh ½ρ‖W‖², from the inverse Hessian there. Near the minimum, where a large C leaves ‖G‖² large, that also raises
D. Once it has taken as long as the blocks on the diagonal of the Hessian take, those at W replace the ones at 0. Once
it has taken as long as a few steps of Newton's method would, or rounding stops it, these follow, by conjugate gradients
where the Hessian is large. The line search needs no product with X: scores are linear in W.
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
ROWS = 40  # for each feature: with fewer, classes are often separable, where the Hessian at W = 0 says little
FIRST = 5  # evaluations before the Hessian at W says more than that at 0
CHUNK = 2**16  # entries of X that stay in the cache with their products
CLOSE = 0.1  # times the gap that is wanted: P is near its minimum where L-BFGS expects to decrease it by less
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
        self.q, self.mass = np.multiply(c, q.T, order="C"), np.multiply(c, mass.T, order="C")
        self.shape = len(self.q), X.shape[1]
        self.curvature = 1 / 4 if self.box else 1 / len(self.q)  # of the loss at equal scores
        self.at_zero: Array | None = None  # the inverse of the Hessian at W = 0
        self.left = 0.0  # the fraction of the gap that was left when the dual was raised
        size = max(CHUNK // self.shape[1], self.shape[1])
        self.chunks = [slice(i, i + size) for i in range(0, len(c), size)]
        self.pairs: list[tuple[Array, Array, float]] = []  # of L-BFGS: changes of W and of G, and their product
        self.D, self.first = eta * float(progress.dual_of_start), 0.0  # twice the first gap
        # Memory that is used again and again: fresh pages take as long as the arithmetic. alpha: the probabilities.
        self.U, self.next_U, self.alpha, self.buffer = (np.empty_like(self.q) for _ in range(4))

    def minimise(self, start: Array | None, max_iter: int) -> None:
        """Until the gap is small enough, or rounding is what is left; ``start``: W."""
        (K, F), n = self.shape, self.q.shape[1]
        evaluation = 2 * n * K * F + 5e5
        self.gram = (n * F**2 / 4 + 2 * F**3) / evaluation  # the time of one in single precision and its inverse
        hessian = n * (K * F) ** 2 / (2 * K if self.box else 2) + (K * F) ** 3 / 3
        budget = 0 if hessian < SMALL else int(STEPS * hessian / evaluation)  # of L-BFGS
        self.factorises = not self.sparse and K * F <= MAX_SIDE
        budget = min(budget, PATIENCE) if self.factorises else PATIENCE
        self.W = np.zeros(self.shape) if start is None else start
        self.U[:] = 0.0 if start is None else self._scores(start)
        self.P = self._value(self.W, self.U)
        self.G = self._gradient()
        self.inverse = self._first_inverse(budget)
        due = max(FIRST, K * self.gram) if self.inverse.ndim == 3 and K > 1 else math.inf
        falls = True
        while falls:
            if due <= self.iterations < budget:
                self.inverse, due = self._inverse(self.mass * self.alpha * (1 - self.alpha)), math.inf
            d = -self._quasi_newton(self.G) if self.iterations < budget else np.zeros(0)
            if not self._goes_on(max_iter, -float(np.vdot(self.G, d)) / 2 if len(d) else math.inf):
                break
            self.iterations += 1
            falls = len(d) > 0 and self._move(d)
            if not falls:  # also where rounding stops L-BFGS early
                budget, falls = 0, self._move(self._newton())

    def _goes_on(self, max_iter: int, decrease: float) -> bool:
        """``decrease``: what the next step promises."""
        gap = float(np.vdot(self.G, self.G)) / (2 * self.rho)
        self.D, self.first = max(self.D, self.P - gap), self.first or 2 * gap
        enough = float(self.progress.enough(self.D, self.P - self.D))
        near = not self.sparse and decrease < CLOSE * enough and self.left * gap < enough
        if near and enough < self.P - self.D:
            steps = self.iterations * math.log(gap / enough) / max(math.log(self.first / gap), 1e-9)  # at this rate
            if steps > 1 + self.gram * (self.at_zero is None):
                self._raise_dual(enough)
                self.left = (self.P - self.D) / gap
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
            W = self.W + t * d
            np.multiply(Z, t, out=self.next_U)
            self.next_U += self.U
            P = self._value(W, self.next_U)
            if self.P + 1e-4 * t * slope >= P - 1e-15 * abs(self.P):  # the gap may fall where P does not
                break
        else:
            self._value(self.W, self.U)
            return False
        s, G, falls = W - self.W, self.G, P < self.P
        self.W, self.P, self.U, self.next_U = W, P, self.next_U, self.U
        self.G = self._gradient()
        y = self.G - G
        self.pairs = [*self.pairs[1 - MEMORY :], (s, y, float(np.vdot(s, y)))]
        return falls

    def _scores(self, W: Array) -> Array:
        return np.ascontiguousarray((self.X @ W.T).T) if self.sparse else W @ self.X.T

    def _value(self, W: Array, U: Array) -> float:
        """P, and the probabilities, from the distances to the largest score, which keep the digits of small losses."""
        top = np.maximum(U, 0.0) if self.box else U.max(0)
        below = np.subtract(U, top, out=self.alpha)
        linear = np.vdot(self.q, below)
        if self.box:
            linear -= np.vdot(self.mass - self.q, top)
            logs = np.log1p(np.exp(-np.abs(U)))
            special.expit(U, out=self.alpha)
        else:
            total = np.exp(below, out=below).sum(0)
            logs = np.log(total)
            self.alpha /= total
        return float(np.vdot(self.mass, logs) - linear + self.rho / 2 * np.vdot(W, W))

    def _gradient(self) -> Array:
        G: Array = self.rho * self.W + self._product(self.alpha)
        return G

    def _product(self, alpha: Array) -> Array:
        """Σ_i c_i s_i x_iᵀ at the probabilities alpha."""
        s = np.multiply(self.mass, alpha, out=self.buffer)
        s -= self.q
        product: Array = s @ self.X
        return product

    def _curve(self, Z: Array) -> Array:
        """The Hessian of the losses by the scores, times Z; overwritten by the next call."""
        curve = np.multiply(self.alpha, Z, out=self.buffer)
        curve -= self.alpha * (curve if self.box else curve.sum(0))
        curve *= self.mass
        return curve

    def _first_inverse(self, budget: int) -> Array:
        """What L-BFGS starts from: the inverse of the Hessian at W = 0, or of its diagonal, ``[F]``."""
        self.flat = self.curvature * self.mass.max(0)
        if self.sparse:
            self.diagonal = self.rho + self.flat @ self.X.multiply(self.X)
        else:
            parts = (self.flat[rows] @ np.square(self.X[rows]) for rows in self.chunks)
            self.diagonal = sum(parts, np.full(self.shape[1], self.rho))
        small = not self.sparse and self.gram <= 2 and self.shape[1] <= len(self.flat) / ROWS
        if budget == 0 or not small or self.diagonal.mean() < STIFF * self.rho:
            return np.asarray(1 / self.diagonal)
        self.at_zero = found = self._inverse(self.flat[None])
        return found

    def _inverse(self, weights: Array) -> Array:
        """(ρ + Σ_i w_i x_i x_iᵀ)⁻¹ for each w of ``weights``, nearly, from products in single precision."""
        H, scale = np.zeros((len(weights), self.shape[1], self.shape[1])), 1 / np.sqrt(self.diagonal)
        roots = np.sqrt(weights).astype(np.float32)[:, :, None]
        for rows in self.chunks:
            X = (self.X[rows] * scale).astype(np.float32)
            for sums, root in zip(H, roots[:, rows], strict=True):
                part = root * X
                sums += part.T @ part
        return np.stack([-self._solve(h / (scale[:, None] * scale), np.eye(len(h))) for h in H])

    def _raise_dual(self, enough: float) -> None:
        """D at dual points next to s, where ‖G‖² is still large because C is, until the gap is ``enough``.

        With the curvature at equal scores, the change of s by the scores of d = −inverse · G makes G = 0 at W + d. What
        it moves out of the hull is clipped, which a second round repairs.
        """
        if self.at_zero is None:
            self.at_zero = self._inverse(self.flat[None])
        W, G, alpha = self.W, self.G, self.alpha
        for _ in range(2):
            d = -G @ self.at_zero[0]
            Z = self._scores(d)
            if not self.box:
                Z -= Z.mean(0)
            Z *= self.curvature
            Z += alpha
            alpha = np.clip(Z, 1e-300, 1.0, out=Z)
            if not self.box:
                alpha /= alpha.sum(0)
            entropy = np.log(alpha, out=self.buffer)
            entropy *= -alpha
            if self.box:
                entropy -= special.xlog1py(1 - alpha, -alpha)
            worth = float(np.vdot(self.mass, entropy if self.box else entropy.sum(0)))
            product = self._product(alpha)
            self.D = max(self.D, worth - float(np.vdot(product, product)) / (2 * self.rho))
            if not enough < self.P - self.D < 10 * enough:
                break
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
        for ridge in (0.0, 1e-14, 1e-12, 1e-9, 1e-6, 1e-4):
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
