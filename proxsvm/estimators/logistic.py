"""Logistic regression, in the primal.

    P(W) = ½‖W‖² + Σ_i c_i ℓ(W x_i; y_i),       G = ∇P(W) = W + Σ_i c_i s_i x_iᵀ,       s_i = ∇ℓ(W x_i; y_i)

The gradients s_i are a dual point, whose gap is P(W) − D(s) = ½‖G‖², because ℓ(u) = ⟨s, u⟩ + c at its own u: an
evaluation of P certifies itself. L-BFGS minimises P, in weights that are scaled by the columns' curvature at W = 0.
Once it has taken as long as a few steps of Newton's method would, these follow.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array
from proxsvm.losses.hulls import EntropyBox
from proxsvm.solvers._arrays import to_numpy
from proxsvm.solvers.base import Progress

lapack: Any = load("scipy.linalg.lapack", extra="estimators")
optimize: Any = load("scipy.optimize", extra="estimators")
special: Any = load("scipy.special", extra="estimators")

MEMORY = 20  # pairs of L-BFGS
STEPS = 8  # of Newton's method, about as many as a problem takes
SMALL = 3e6  # multiplications of a Hessian that take no longer than an evaluation
MAX_SIDE = 2000  # of the Hessian


class Done(Exception):
    """The gap is small enough, or Newton's method is faster from here."""


class Logistic:
    """P of the features X, ``[n, F]``, and the targets of an :class:`EntropySimplex` or :class:`EntropyBox`.

    ``c``: the weight of each sample's loss, ``[n]``, of the sum η; ``progress`` is told P/η and D/η. Inside, scores are
    ``[K, n]``, and V = W · ``scale``. Two classes are one output: W = (−z, z)/√2.
    """

    def __init__(self, X: Any, hull: Any, c: Array, eta: float, progress: Progress) -> None:
        self.eta, self.progress, self.iterations = eta, progress, 0
        self.box, self.sparse = isinstance(hull, EntropyBox), hasattr(X, "tocoo")
        q = to_numpy(hull.a if self.box else hull.q).reshape(len(c), -1)
        mass = q + to_numpy(hull.b).reshape(q.shape) if self.box else q.sum(1, keepdims=True)
        self.pair = not self.box and q.shape[1] == 2
        if self.pair:
            self.box, q, X = True, q[:, 1:], math.sqrt(2) * X
        self.q, self.mass = (c[:, None] * q).T.copy(), (c[:, None] * mass).T.copy()
        self.shape = len(self.q), X.shape[1]
        self.flat = 1 / 4 if self.box else 1 / len(self.q)  # the curvature of the loss at equal scores
        squares = X.multiply(X) if self.sparse else np.square(X)
        self.scale = np.sqrt(1.0 + self.flat * (self.mass.max(0) @ squares))
        self.X = X.multiply(1 / self.scale).tocsr() if self.sparse else X / self.scale
        self.P, self.D = math.inf, eta * float(progress.dual_of_start)  # the best so far; V is that of P

    def at(self, V: Array) -> tuple[Array, float, Array]:
        """The probabilities, P and its gradient by V; keeps the best P and D."""
        U = np.ascontiguousarray((self.X @ V.T).T) if self.sparse else V @ self.X.T
        alpha, loss = self._softmax(U)
        W = V / self.scale
        G = W / self.scale + (self.mass * alpha - self.q) @ self.X
        P = loss - float(np.vdot(self.q, U)) + float(np.vdot(W, W)) / 2
        D = P - float(np.square(self.scale * G).sum()) / 2
        if P < self.P:
            self.P, self.V = P, V
        self.D = max(self.D, D)
        return alpha, P, G

    def _softmax(self, U: Array) -> tuple[Array, float]:
        """The probabilities, and the sum of the weighted logarithms of their normalisation."""
        if self.box:
            return special.expit(U), float(np.vdot(self.mass, np.logaddexp(0.0, U)))
        top = U.max(0)
        alpha = np.exp(U - top)
        total = alpha.sum(0)
        return alpha / total, float(self.mass[0] @ (np.log(total) + top))

    def minimise(self, start: Array | None, max_iter: int) -> None:
        """Until the gap is small enough; ``start``: W, for two classes the difference of theirs."""
        n, side = self.q.shape[1], math.prod(self.shape)
        hessian = n * side**2 / (2 * len(self.q) if self.box else 2) + side**3 / 3
        able = side <= MAX_SIDE and not self.sparse
        budget = max_iter if not able else 0 if hessian < SMALL else int(STEPS * hessian / (2 * n * side + 5e5))
        V = np.zeros(self.shape) if start is None else (math.sqrt(0.5) if self.pair else 1.0) * start * self.scale
        if budget:
            V = self._descend(V, min(budget, max_iter))
        if able:
            self._newton(V, max_iter)

    def _goes_on(self, max_iter: int) -> bool:
        stop = self.progress.stop(self.iterations, self.D / self.eta, (self.P - self.D) / self.eta)
        if stop or self.iterations >= max_iter:
            return False
        self.iterations += 1
        return True

    def _descend(self, V: Array, budget: int) -> Array:
        """L-BFGS in V over the length of the step that is best along the first gradient, of the curvature at V = 0."""
        first = self.at(V)
        G = first[2]
        curved = G / self.scale**2 + self.flat * (self.mass.max(0) * (G @ self.X.T)) @ self.X
        unit = float(np.vdot(G, G)) ** 1.5 / float(np.vdot(G, curved))

        def evaluate(v: Array) -> tuple[float, Array]:
            _, P, G = first if (v == begin).all() else self.at(unit * v.reshape(self.shape))
            if not self._goes_on(budget):
                raise Done
            return P, unit * G.ravel()

        begin = V.ravel() / unit
        with suppress(Done):
            optimize.fmin_l_bfgs_b(evaluate, begin, m=MEMORY, factr=0.0, pgtol=0.0, maxiter=budget, maxfun=budget)
        return self.V

    def _newton(self, V: Array, max_iter: int) -> None:
        """Newton's method with a line search by halving, until rounding is what is left."""
        alpha, P, G = self.at(V)
        before = math.inf
        while before > P and self._goes_on(max_iter):
            d = self._direction(alpha, G)
            before, slope, t = P, float(np.vdot(G, d)), 1.0
            alpha, P, G = self.at(V + d)
            while before + 1e-4 * t * slope < P and t > 1e-6:
                t /= 2
                alpha, P, G = self.at(V + t * d)
            V = V + t * d

    def _direction(self, alpha: Array, G: Array) -> Array:
        """−Hessian⁻¹ G."""
        (K, F), X = self.shape, self.X
        curve = self.mass * alpha * (1 - alpha) if self.box else self.mass * alpha
        blocks = [(X.T * weight) @ X for weight in curve]
        if self.box:  # the outputs are independent
            return np.stack([self._solved(H, g) for H, g in zip(blocks, G, strict=True)])
        root = ((np.sqrt(self.mass) * alpha)[:, None] * X.T).reshape(K * F, -1)
        H = -(root @ root.T).reshape(K, F, K, F)
        for k, block in enumerate(blocks):
            H[k, :, k] += block
        return self._solved(H.reshape(K * F, K * F), G.ravel()).reshape(K, F)

    def _solved(self, H: Array, g: Array) -> Array:
        """−(H + the regularisation)⁻¹ g; what rounding leaves singular gets a ridge."""
        diagonal = H.reshape(-1)[:: len(H) + 1]
        diagonal += np.tile(self.scale**-2.0, len(H) // len(self.scale))
        for ridge in (0.0, 1e-14, 1e-12, 1e-9, 1e-6):
            diagonal += ridge
            _, d, failed = lapack.dposv(H, -g)
            if not failed:
                break
        solution: Array = d
        return solution

    @property
    def weight(self) -> Array:
        """W, ``[K, F]``."""
        W: Array = self.V / self.scale
        return np.concatenate([-W, W]) / math.sqrt(2) if self.pair else W
