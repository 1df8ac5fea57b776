"""The Deep Frank-Wolfe algorithm in the paper's letters (Algorithm 1, typos corrected): the optimizer's plain twin."""

import torch
from torch import Tensor


def get_s(u: Tensor, y: int, smooth: bool) -> Tensor:
    """The dual direction of one sample, a point of the simplex over classes (appendix A.6)."""
    K = len(u)
    Delta = torch.tensor([float(k != y) for k in range(K)], dtype=u.dtype)
    b = u - u[y] + Delta
    conditional_gradient = torch.zeros_like(u)
    conditional_gradient[b.argmax()] = 1
    s_ce = torch.softmax(u, 0)
    return s_ce if smooth and s_ce @ b > 0 else conditional_gradient


def dfw_step(
    w: Tensor, z: Tensor, scores: Tensor, y: Tensor, *, eta: float, mu: float, l2: float, smooth: bool
) -> tuple[Tensor, Tensor, float]:
    """One step on the flat parameters ``w`` with the Jacobian computed sample by sample: (w, z, γ)."""
    n, K = scores.shape
    value, delta = torch.zeros(()), torch.zeros_like(w)
    for i in range(n):
        s = get_s(scores[i].detach(), int(y[i]), smooth)
        b = torch.stack([scores[i, k] - scores[i, y[i]] + float(k != y[i]) for k in range(K)])
        (grad,) = torch.autograd.grad(s @ b, w, retain_graph=True)
        value, delta = value + (s @ b).detach() / n, delta + grad / n
    r = l2 * w.detach()
    gamma = float(((-eta * delta @ r + value) / (eta * delta @ delta)).clamp(0, 1)) if delta.any() else 0.0
    z = mu * z - eta * gamma * (r + delta)
    return w.detach() - eta * (r + gamma * delta) + mu * z, z, gamma


class PlainStep:
    """A single step on the gradients g of a loss value f, with H = M/η and M of each metric's own formulas.

    δ = (1 − ν) g + ν q             ν = memory², the weight of the past; with ``heavy_ball`` memory itself
    γ = clip₀₁[ ((1 − ν) f + ν h − Σ η·decay·⟨w, δ⟩) / Σ ⟨δ, H⁻¹ δ⟩ ]         d = −γ H⁻¹ δ
    z ← μ z + d − η·decay·γ·w       w ← w + d − η·decay·w + μ z               w̄ ← β w̄ + (1 − β) w
    q ← memory q + (1 − memory) g   h ← memory (h + ⟨q, d⟩) + (1 − memory) (f + ⟨g, d⟩)

    With lr="auto" η is the distance over gradients in the metric. ``lr``, ``mu``, ``decay`` and ``metric`` are one for
    all parameters, or a list with one for each: γ is one for all.
    """

    def __init__(self, params, lr, mu=0.0, decay=0.0, *, metric, average, memory=0.0, heavy_ball=False):
        self.w, self.average, self.memory, self.t = list(params), average, memory, 0
        self.lr, self.mu, self.decay, self.metric = (
            option if isinstance(option, list) else [option] * len(self.w) for option in (lr, mu, decay, metric)
        )
        self.old = memory if heavy_ball else memory**2  # Nesterov's is a look-ahead
        self.v, self.z, self.q = ([torch.zeros_like(p) for p in self.w] for _ in range(3))
        self.start, self.mean = ([p.detach().clone() for p in self.w] for _ in range(2))
        self.sides, self.bases = [[0.0, 0.0] for _ in self.w], [None for _ in self.w]
        self.h, self.far, self.squares = 0.0, None, 0.0

    def _turn(self, i, x, back=False):
        if self.bases[i] is None:
            return x
        U, V = self.bases[i]
        y = x.flatten(1)
        return (U @ y @ V.T if back else U.T @ y @ V).view_as(x)

    def _observe(self, g):
        self.M = []
        for i, (x, metric) in enumerate(zip(g, self.metric, strict=True)):
            if hasattr(metric, "every") and x.dim() > 1:
                G = x.flatten(1)
                new = [torch.addmm(s.new_zeros(1), s, s.T, alpha=1 - metric.beta) for s in (G, G.T)]
                self.sides[i] = [metric.beta * a + s for a, s in zip(self.sides[i], new, strict=True)]
                if self.t % metric.every == 0:
                    self.bases[i] = [torch.linalg.eigh(s)[1] for s in self.sides[i]]
            if metric.identity:
                self.M.append(1.0)
                continue
            self.v[i] = metric.beta2 * self.v[i] + (1 - metric.beta2) * self._turn(i, x).square()
            self.M.append((self.v[i] / (1 - metric.beta2 ** (self.t + 1))).sqrt() + metric.eps)

    def _solve(self, i, x):
        return self._turn(i, self._turn(i, x) / self.M[i], back=True)

    def _eta(self, g):
        auto = [i for i, lr in enumerate(self.lr) if lr == "auto"]

        def length(vectors):
            return sum(float((self.M[i] * self._turn(i, vectors[i]) ** 2).sum()) for i in auto) ** 0.5

        self.squares += sum(float((g[i] * self._solve(i, g[i])).sum()) for i in auto)
        first = (0.1 if self.memory else 1e-3) * length(self.start) if self.far is None else self.far
        self.far = max(first, length([p - s for p, s in zip(self.w, self.start, strict=True)]))
        return [(1 - self.mu[i]) * self.far / self.squares**0.5 if i in auto else lr for i, lr in enumerate(self.lr)]

    @torch.no_grad()
    def step(self, value: Tensor) -> float:
        f, m, g = float(value), self.memory, [p.grad for p in self.w]
        self._observe(g)
        eta = self._eta(g)
        delta = [(1 - self.old) * x + self.old * q for x, q in zip(g, self.q, strict=True)]
        along = [e * self._solve(i, x) for i, (e, x) in enumerate(zip(eta, delta, strict=True))]
        decayed = [e * c * p for e, c, p in zip(eta, self.decay, self.w, strict=True)]
        ascent = (1 - self.old) * f + self.old * self.h - dot(decayed, delta)
        norm = dot(delta, along)
        gamma = min(max(ascent / norm, 0.0), 1.0) if norm > 0 else float(ascent > 0)
        d = [-gamma * y for y in along]
        self.h = m * (self.h + dot(self.q, d)) + (1 - m) * (f + dot(g, d))
        self.q = [m * q + (1 - m) * x for q, x in zip(self.q, g, strict=True)]
        beta = min(self.average, (1 + self.t) / (10 + self.t))
        for i, (p, x, r) in enumerate(zip(self.w, d, decayed, strict=True)):
            self.z[i] = self.mu[i] * self.z[i] + x - gamma * r
            p.add_(x - r + self.mu[i] * self.z[i])
            self.mean[i] = beta * self.mean[i] + (1 - beta) * p
        self.t += 1
        return gamma


def dot(x, y):
    return sum(float((a * b).sum()) for a, b in zip(x, y, strict=True))
