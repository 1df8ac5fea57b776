"""The linear case: scores are features times weights, so J is the features themselves and no graph is needed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from proxsvm.linearization.base import LinearMap
from proxsvm.losses.base import ConvexLoss, Origin, Scores, parts


class FeatureLinearization(LinearMap):
    """d ↦ X d for features X, ``[n, F]`` dense or sparse, and one weight tensor ``[*out, F]``; scores ``[n, *out]``.

    >>> X = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    >>> line = FeatureLinearization(X, torch.zeros(2))
    >>> line.jvp([torch.tensor([1.0, 1.0])]), line.vjp(torch.tensor([1.0, 1.0]))
    (tensor([3., 1.]), [tensor([1., 3.])])
    """

    def __init__(self, features: Tensor, weight: Tensor) -> None:
        zero = torch.zeros(len(features), *weight.shape[:-1], dtype=weight.dtype, device=weight.device)
        super().__init__(zero, [weight])
        self.features: Tensor = features
        self._transposed: Tensor | None = None
        if bool(weight.any()):
            self.scores = self.jvp([weight])

    def vjp(self, s: Scores, reuse: bool = False) -> list[Tensor]:
        """Xᵀ s, in the weight's shape."""
        (weight,), n = self.params, len(self.features)
        if self._transposed is None:  # of sparse features as CSR again, for fast products
            X = self.features.t()
            self._transposed = X if X.layout is torch.strided else _rows(X)
        return [(self._transposed @ parts(s)[0].to(weight.dtype).reshape(n, -1)).t().reshape(weight.shape)]

    def jvp(self, d: Sequence[Tensor]) -> Scores:
        """X d, ``[n, *out]``."""
        (weight,), n = self.params, len(self.features)
        scores: Tensor = self.features @ d[0].reshape(-1, weight.shape[-1]).t()
        return scores.reshape(n, *weight.shape[:-1])

    def jacobian(self, chunk: int = 64) -> Tensor:
        """J as a dense ``[m, P]`` matrix: X once for each output."""
        X = self.features.to_dense()
        outputs = self.params[0].numel() // max(X.shape[1], 1)
        eye = torch.eye(outputs, dtype=X.dtype, device=X.device)
        return torch.einsum("nf,ok->nokf", X, eye).reshape(len(X) * outputs, -1)


def linear(
    loss: ConvexLoss, features: Any, target: Any, weight: Tensor | None, sample_weight: Tensor | None
) -> tuple[Origin, FeatureLinearization]:
    """The parts of a linear model's proximal problem, checked; see ``ProxProblem.from_features``."""
    X, y = as_features(features), torch.as_tensor(target)
    if len(y) != len(X):
        raise ValueError(f"features have {len(X)} rows, but there are {len(y)} targets; expected one target per row")
    y = y.to(X.device)
    if weight is None:
        out = y.shape[1:] if y.is_floating_point() else (int(y.max()) + 1,)
        weight = torch.zeros(*out, X.shape[1], dtype=X.dtype, device=X.device)
    elif weight.shape[-1] != X.shape[1]:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; expected [..., {X.shape[1]}], the features' F")
    line = FeatureLinearization(X, weight.detach())
    scores, y = loss.prepare(line.scores, y)
    p = loss.coefficients(scores, y, sample_weight)
    return Origin(loss, scores, y, p), line


def as_features(features: Any) -> Tensor:
    """Features as a floating-point tensor ``[n, F]``: dense, or sparse CSR.

    Takes a dense tensor or array, a torch sparse tensor (COO, CSR or CSC) or a SciPy sparse matrix.

    >>> as_features([[1, 2]])
    tensor([[1., 2.]])
    """
    if hasattr(features, "tocsr"):  # SciPy
        csr = features.tocsr()
        if not csr.has_canonical_format:
            csr = csr.copy()  # it may be the caller's, and the sum is in place
            csr.sum_duplicates()
        tensor = _csr(csr.indptr, csr.indices, csr.data, csr.shape)
    else:
        tensor = torch.as_tensor(features)
        if tensor.dim() == 2 and tensor.layout is not torch.strided:
            coo: Any = tensor.to_sparse_coo()  # type: ignore[no-untyped-call, unused-ignore]
            tensor = _rows(coo.coalesce())
    if tensor.dim() != 2:
        raise ValueError(f"features have shape {tuple(tensor.shape)}; expected [n, F], one row per sample")
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    return tensor.detach()


def _rows(sparse: Tensor) -> Tensor:
    """A sparse matrix by its rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that CSR is in beta
        rows = sparse.to_sparse_csr()
    return _csr(rows.crow_indices(), rows.col_indices(), rows.values(), rows.shape)


def _csr(starts: Any, columns: Any, values: Any, shape: Any) -> Tensor:
    small = max(len(values), *shape) < 2**31  # four bytes per index, which the fast products also need
    index = torch.int32 if small else torch.int64
    starts, columns = (torch.as_tensor(x).to(index, copy=True) for x in (starts, columns))  # nobody else changes them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that CSR is in beta
        return torch.sparse_csr_tensor(starts, columns, torch.as_tensor(values), tuple(shape), check_invariants=True)
