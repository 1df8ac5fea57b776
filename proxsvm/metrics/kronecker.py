"""The metric of SOAP: Adam's diagonal in the eigenbases of a matrix's rows and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from proxsvm._extras import eager
from proxsvm._kernels.tensors import accumulator
from proxsvm.metrics.base import Matrix, Metric, State, Tensors, dots
from proxsvm.metrics.diagonal import Diagonal, bias_correction


class Kronecker(Metric):
    """M = Q (√v̂ + eps) Qᵀ: Adam's diagonal, rotated by the eigenbases of the running means of G Gᵀ and GᵀG.

    A parameter of two or more dimensions is a matrix G, ``[out, rest]``, and Q its rotation G ↦ U G Vᵀ. A side of more
    than ``largest`` entries (of an embedding, a large head) keeps the identity; vectors are diagonal. So
    ``model.parameters()`` works for any network, without routing by hand.

    U and V are the eigenvectors at a parameter's first step, and follow by one step of orthogonal iteration, a QR
    decomposition, every few steps. v lives in the rotated coordinates and is not rotated along.

    Args:
        beta2: the decay of v̂, in [0, 1).
        beta: the decay of the means of G Gᵀ and GᵀG, in [0, 1).
        eps: keeps M away from 0; above 0.
        every: how many steps a basis is kept.
        largest: the largest side that is rotated.

    Reference: Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam, ICLR 2025.

    >>> metric, G = Kronecker(), torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> matrix, state = metric.observe([G], [metric.start(G)], torch.tensor(0.0))
    >>> matrix.solve([G])[0].norm()                              # at the first step M = |G| in the eigenbases
    tensor(1.0000)
    """

    state = ("v", "L", "R", "U", "V", "age")

    def __init__(
        self, beta2: float = 0.999, beta: float = 0.95, eps: float = 1e-8, every: int = 10, largest: int = 2048
    ) -> None:
        Diagonal(beta2, eps)  # checks them
        if not 0 <= beta < 1:
            raise ValueError(f"beta is {beta}; expected a number in [0, 1)")
        if every < 1 or largest < 1:
            raise ValueError(f"every is {every} and largest {largest}; expected whole numbers, at least 1")
        self.beta2, self.beta, self.eps, self.every, self.largest = beta2, beta, eps, every, largest

    def start(self, w: Tensor) -> State:
        """v, L and R are 0; the bases are found at the first step. ``age``: the steps of the present bases."""
        dtype = accumulator(w.dtype)
        found: State = {"v": torch.zeros_like(w, dtype=dtype)}
        if w.dim() > 1 and w.numel():
            for name, basis, side in zip("LR", "UV", (len(w), w[0].numel()), strict=True):
                if 1 < side <= self.largest:
                    found[name] = torch.zeros(side, side, dtype=dtype, device=w.device)
                    found[basis] = torch.eye(side, dtype=dtype, device=w.device)
                    found["age"] = 0
        return found

    def observe(self, gradients: Tensors, state: list[State], steps: Tensor) -> tuple[Matrix, list[State]]:
        """L' = β L + (1 − β) G Gᵀ, R' likewise; the bases where they are due; then v' and M as in Adam's diagonal."""
        after: list[State] = []
        rotated = []
        for g, own in zip(gradients, state, strict=True):
            new = {name: own[name] for name in self.state if name in own}
            if "age" in own:
                G = g.reshape(len(g), -1)
                for name, basis, side in (("L", "U", G), ("R", "V", G.T)):
                    if name in own:
                        new[name] = self.beta * own[name] + (1 - self.beta) * (side @ side.T)
                        if own["age"] % self.every == 0:
                            new[basis] = _basis(new[name], own[basis], first=own["age"] == 0)
                new["age"] = own["age"] + 1
            rotated.append(_rotated(g, new))
            new["v"] = torch.lerp(rotated[-1].square(), own["v"], self.beta2)
            after.append(new)
        correction = bias_correction(self.beta2, steps)
        entries = [(new["v"] * correction).sqrt_().add_(self.eps) for new in after]
        return RotatedMatrix(after, entries, gradients, rotated), after


class RotatedMatrix(Matrix):
    """M as a diagonal of ``entries`` in the bases U and V of each parameter; it knows the gradients' coordinates."""

    def __init__(self, bases: list[State], entries: Tensors, gradients: Tensors, rotated: list[Tensor]) -> None:
        self.bases, self.entries, self._known = bases, entries, (gradients, rotated)

    def rotate(self, x: Tensors) -> list[Tensor]:
        """Qᵀ x: the coordinates in which M is diagonal."""
        gradients, rotated = self._known
        return rotated if x is gradients else [_rotated(a, own) for a, own in zip(x, self.bases, strict=True)]

    def rotate_back(self, x: Tensors) -> list[Tensor]:
        """Q x."""
        return [_rotated(a, own, back=True) for a, own in zip(x, self.bases, strict=True)]

    def solve(self, x: Tensors) -> list[Tensor]:
        """Q (Qᵀx / m)."""
        return self.rotate_back([a / m for a, m in zip(self.rotate(x), self.entries, strict=True)])

    def times(self, x: Tensors) -> list[Tensor]:
        """Q (m Qᵀx)."""
        return self.rotate_back([a * m for a, m in zip(self.rotate(x), self.entries, strict=True)])

    def squared(self, x: Tensors) -> Tensor:
        """‖√m Qᵀx‖²: no way back is needed."""
        y = self.rotate(x)
        return dots(y, [a * m for a, m in zip(y, self.entries, strict=True)])

    def dual_squared(self, x: Tensors) -> Tensor:
        """‖Qᵀx / √m‖²."""
        y = self.rotate(x)
        return dots(y, [a / m for a, m in zip(y, self.entries, strict=True)])

    def root(self, rows: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
        """rows · Q m^(−½) Qᵀ."""
        pieces = torch.split(rows, [math.prod(shape) for shape in shapes], 1)
        found = []
        for piece, shape, own, m in zip(pieces, shapes, self.bases, self.entries, strict=True):
            turned = [_rotated(_rotated(row.to(m.dtype).view(shape), own) / m.sqrt(), own, back=True) for row in piece]
            found.append(torch.stack(turned).reshape(len(piece), -1).to(rows.dtype))
        return torch.cat(found, 1)


def _rotated(x: Tensor, own: State, back: bool = False) -> Tensor:
    """Uᵀ x V, or U x Vᵀ, of a parameter as a matrix ``[out, rest]``; a basis that is missing is the identity."""
    if "age" not in own:
        return x
    y = x.reshape(len(x), -1)
    if "U" in own:
        y = (own["U"] if back else own["U"].T) @ y
    if "V" in own:
        y = y @ (own["V"].T if back else own["V"])
    return y.reshape(x.shape)


@eager
def _basis(square: Tensor, basis: Tensor, first: bool) -> Tensor:
    """The eigenvectors of a mean of squares; later one step of orthogonal iteration from the present basis.

    Where the decomposition fails, or its input is not finite, the present basis stays.
    """
    try:
        found = torch.linalg.eigh(square)[1] if first else torch.linalg.qr(square @ basis)[0]
    except RuntimeError:  # LinAlgError is one
        return basis
    return torch.where(found.isfinite().all(), found, basis)
