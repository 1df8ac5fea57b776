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
    """A single step on the gradients g of a loss value, with H = M/η; M = 1 without ``metric``.

    M = √v̂ + eps                             v̂: bias-corrected running mean of g², this step's g included
    γ = clip₀₁[ (value − Σ η·decay·⟨w, g⟩) / Σ ⟨g, H⁻¹ g⟩ ]
    z ← μ z − γ H⁻¹ g − η·decay·γ·w           w ← w − γ H⁻¹ g − η·decay·w + μ z

    With lr="auto" η is the distance over gradients in the metric; w̄ ← β w̄ + (1 − β) w. ``lr``, ``mu``, ``decay`` and
    ``metric`` are lists with one for each parameter; γ is one for all.
    """

    def __init__(self, params, lr, mu, decay, *, metric, average, beta2=0.999, eps=1e-8):
        self.params, self.average, self.beta2, self.eps = list(params), average, beta2, eps
        self.lr, self.mu, self.decay, self.metric = lr, mu, decay, metric
        self.v, self.z = ([torch.zeros_like(p) for p in self.params] for _ in range(2))
        self.start, self.mean = ([p.detach().clone() for p in self.params] for _ in range(2))
        self.t, self.far, self.squares, self.gamma = 0, None, 0.0, 1.0

    @torch.no_grad()
    def step(self, value: Tensor) -> None:
        w, g = self.params, [p.grad for p in self.params]
        self.t += 1
        self.v = [self.beta2 * v + (1 - self.beta2) * x * x for v, x in zip(self.v, g, strict=True)]
        M = [
            (v / (1 - self.beta2**self.t)).sqrt() + self.eps if metric else torch.ones_like(v)
            for v, metric in zip(self.v, self.metric, strict=True)
        ]
        norms = [float((x * x / m).sum()) for x, m in zip(g, M, strict=True)]
        eta = self._eta(norms, M)
        dots = [float((p * x).sum()) for p, x in zip(w, g, strict=True)]
        ascent = float(value) - sum(e * c * d for e, c, d in zip(eta, self.decay, dots, strict=True))
        norm = sum(e * n for e, n in zip(eta, norms, strict=True))
        self.gamma = min(max(ascent / norm, 0.0), 1.0) if norm > 0 else float(ascent > 0)
        beta = min(self.average, self.t / (9 + self.t))
        for i, (p, x, m) in enumerate(zip(w, g, M, strict=True)):
            d, decay = self.gamma * x / m, self.decay[i]
            self.z[i] = self.mu[i] * self.z[i] - eta[i] * (d + decay * self.gamma * p)
            p.copy_(p - eta[i] * (d + decay * p) + self.mu[i] * self.z[i])
            self.mean[i] = beta * self.mean[i] + (1 - beta) * p

    def _eta(self, norms: list[float], M: list[Tensor]) -> list[float]:
        auto = [i for i, lr in enumerate(self.lr) if lr == "auto"]

        def length(vectors: list[Tensor]) -> float:
            return sum(float((M[i] * vectors[i] * vectors[i]).sum()) for i in auto) ** 0.5

        self.squares += sum(norms[i] for i in auto)
        gone = length([p - s for p, s in zip(self.params, self.start, strict=True)])
        self.far = max(1e-3 * length(self.start) if self.far is None else self.far, gone)
        return [(1 - self.mu[i]) * self.far / self.squares**0.5 if i in auto else lr for i, lr in enumerate(self.lr)]


class MemoryStep:
    """A single step with memory: γ = clip₀₁ λ / (η ‖δ‖²), d = −γ η M⁻¹ δ, on the gradients g of a loss value.

    δ = (1 − μ²) g + μ² q        λ = (1 − μ²) f + μ² h        M as the metric's own formulas, parameter by parameter
    q ← μ q + (1 − μ) g          h ← μ (h + ⟨q, d⟩) + (1 − μ) (f + ⟨g, d⟩)
    """

    def __init__(self, params, lr, mu=0.9, average=0.995, *, metric, heavy_ball=False):
        self.w, self.lr, self.mu, self.beta, self.metric, self.t = list(params), lr, mu, average, metric, 0
        self.old = mu if heavy_ball else mu**2  # the weight of the past: Nesterov's is a look-ahead
        self.q, self.h = [torch.zeros_like(p) for p in self.w], 0.0
        self.start, self.mean = ([p.detach().clone() for p in self.w] for _ in range(2))
        self.v = [torch.zeros_like(p) for p in self.w]
        self.sides, self.bases = [[0.0, 0.0] for _ in self.w], [None for _ in self.w]
        self.far, self.squares = None, 0.0

    def _turn(self, i, x, back=False):
        if self.bases[i] is None:
            return x
        U, V = self.bases[i]
        y = x.flatten(1)
        return (U @ y @ V.T if back else U.T @ y @ V).view_as(x)

    def _observe(self, g):
        metric, self.M = self.metric, []
        for i, x in enumerate(g):
            if hasattr(metric, "every") and x.dim() > 1:
                G = x.flatten(1)
                old, b = self.sides[i], metric.beta
                new = [torch.addmm(s.new_zeros(1), s, s.T, alpha=1 - b) for s in (G, G.T)]
                self.sides[i] = [b * a + s for a, s in zip(old, new, strict=True)]
                if self.t % metric.every == 0:
                    self.bases[i] = [torch.linalg.eigh(s)[1] for s in self.sides[i]]
            if metric.identity:
                self.M.append(1.0)
                continue
            self.v[i] = metric.beta2 * self.v[i] + (1 - metric.beta2) * self._turn(i, x).square()
            self.M.append((self.v[i] / (1 - metric.beta2 ** (self.t + 1))).sqrt() + metric.eps)

    def _solve(self, i, x):
        return self._turn(i, self._turn(i, x) / self.M[i], back=True)

    def _norm(self, vectors):
        return sum(float((self.M[i] * self._turn(i, x) ** 2).sum()) for i, x in enumerate(vectors)) ** 0.5

    def _eta(self, g):
        if self.lr != "auto":
            return self.lr
        self.far = 0.1 * self._norm(self.w) if self.far is None else self.far
        self.far = max(self.far, self._norm([a - b for a, b in zip(self.w, self.start, strict=True)]))
        self.squares += sum(float((x * self._solve(i, x)).sum()) for i, x in enumerate(g))
        return self.far / self.squares**0.5

    @torch.no_grad()
    def step(self, value: Tensor) -> float:
        f, mu, g = float(value), self.mu, [p.grad for p in self.w]
        self._observe(g)
        eta = self._eta(g)
        delta = [(1 - self.old) * x + self.old * q for x, q in zip(g, self.q, strict=True)]
        along = [self._solve(i, x) for i, x in enumerate(delta)]
        norm = sum(float((x * y).sum()) for x, y in zip(delta, along, strict=True))
        gamma = min(1.0, max(0.0, ((1 - self.old) * f + self.old * self.h) / (eta * norm)))
        d = [-gamma * eta * y for y in along]
        q_d, g_d = (sum(float((a * b).sum()) for a, b in zip(x, d, strict=True)) for x in (self.q, g))
        self.h = mu * (self.h + q_d) + (1 - mu) * (f + g_d)
        self.q = [mu * q + (1 - mu) * x for q, x in zip(self.q, g, strict=True)]
        beta = min(self.beta, (1 + self.t) / (10 + self.t))
        for i, (p, x) in enumerate(zip(self.w, d, strict=True)):
            p.add_(x)
            self.mean[i] = beta * self.mean[i] + (1 - beta) * p
        self.t += 1
        return gamma
