"""The metric of SOAP: Adam's diagonal in the eigenbases of a matrix's rows and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from proxsvm._extras import eager
from proxsvm._kernels.tensors import accumulator
from proxsvm.metrics.base import Matrix, Metric, State, Tensors
from proxsvm.metrics.diagonal import Diagonal, DiagonalMatrix, bias_correction

RIDGE = 1e-2  # added to L and R, relative to their mean eigenvalue: what no gradient has reached keeps its basis


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
        after = [{name: own[name] for name in self.state if name in own} for own in state]
        for g, own in zip(gradients, after, strict=True):
            if "age" in own:
                G = g.reshape(len(g), -1)
                for name, side in (("L", G), ("R", G.T)):
                    if name in own:
                        own[name] = torch.addmm(own[name], side, side.T, beta=self.beta, alpha=1 - self.beta)
        _refresh([own for own in after if own.get("age", -1) % self.every == 0])
        rotated = _joined([_rotated(g, own) for g, own in zip(gradients, after, strict=True)])
        v = _joined([own["v"] for own in after])
        torch.lerp(rotated.square(), v, self.beta2, out=v)
        for part, own in zip(_split(v, gradients), after, strict=True):
            own["v"] = part
            if "age" in own:
                own["age"] += 1
        entries = (v * bias_correction(self.beta2, steps)).sqrt_().add_(self.eps)
        return RotatedMatrix(state, after, entries, rotated), after


class RotatedMatrix(Matrix):
    """M as a diagonal of ``entries`` in the bases U and V of each parameter, which had others ``before``."""

    def __init__(self, before: list[State], bases: list[State], entries: Tensor, observed: Tensor) -> None:
        self.before, self.bases, self.observed, self._inside = before, bases, observed, DiagonalMatrix([entries])
        pairs = [(old.get(basis), new.get(basis)) for old, new in zip(before, bases, strict=True) for basis in "UV"]
        self._turned = any(old is not new for old, new in pairs)

    @property
    def inside(self) -> Matrix:
        return self._inside

    def rotate(self, x: Tensors) -> Tensors:
        return [_rotated(a, own) for a, own in zip(x, self.bases, strict=True)]

    def rotate_back(self, x: Tensors) -> Tensors:
        return [_rotated(a, own, back=True) for a, own in zip(x, self.bases, strict=True)]

    def carry(self, x: Tensors) -> Tensors:
        if not self._turned:
            return x
        return self.rotate([_rotated(a, old, back=True) for a, old in zip(x, self.before, strict=True)])

    def solve(self, x: Tensors) -> Tensors:
        """Q (Qᵀx / m)."""
        return self.rotate_back(_split(self.inside.solve([_joined(self.rotate(x))])[0], x))

    def times(self, x: Tensors) -> Tensors:
        """Q (m Qᵀx)."""
        return self.rotate_back(_split(self.inside.times([_joined(self.rotate(x))])[0], x))

    def root(self, rows: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
        """rows · Q m^(−½) Qᵀ."""
        pieces = torch.split(rows, [math.prod(shape) for shape in shapes], 1)
        found = []
        entries = torch.split(self._inside.entries[0].sqrt(), [piece.shape[1] for piece in pieces])
        for piece, shape, own, m in zip(pieces, shapes, self.bases, entries, strict=True):
            rows_ = [_rotated(row.to(m.dtype).view(shape), own) / m.view(shape) for row in piece]
            turned = [_rotated(row, own, back=True) for row in rows_]
            found.append(torch.stack(turned).reshape(len(piece), -1).to(rows.dtype))
        return torch.cat(found, 1)


def _joined(x: Tensors) -> Tensor:
    """One tensor per parameter as one vector."""
    return torch.cat([a.reshape(-1) for a in x])


def _split(flat: Tensor, like: Tensors) -> Tensors:
    """The inverse, in the shapes of ``like``."""
    return [part.view(a.shape) for part, a in zip(torch.split(flat, [a.numel() for a in like]), like, strict=True)]


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
def _refresh(states: list[State]) -> None:
    """New bases: the eigenvectors of L and R at first, later one step of orthogonal iteration; equal sides at once.

    Where a decomposition fails, or is not finite, the present basis stays.
    """
    due: dict[Any, list[tuple[State, str, str]]] = {}
    for own in states:
        for square, basis in (("L", "U"), ("R", "V")):
            if square in own:
                key = own["age"] == 0, own[square].shape, own[square].dtype, own[square].device
                due.setdefault(key, []).append((own, square, basis))
    for (first, *_), group in due.items():
        squares, bases = (torch.stack([own[names[k]] for own, *names in group]) for k in (0, 1))
        ridge = RIDGE * squares.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        try:
            found = torch.linalg.eigh(squares)[1] if first else torch.linalg.qr(squares @ bases + ridge * bases)[0]
        except RuntimeError:  # LinAlgError is one
            continue
        fine = found.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
        for (own, _, basis), new in zip(group, torch.where(fine, found, bases), strict=True):
            own[basis] = new
