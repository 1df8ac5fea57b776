"""The linear case: scores are features times weights, so J is the features themselves and no graph is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from proxsvm.linearization import Linearization
from proxsvm.losses.base import Scores, parts


class FeatureLinearization(Linearization):
    """d ↦ X d for features X, ``[n, F]`` dense or sparse, and one weight tensor ``[*out, F]``; scores ``[n, *out]``.

    >>> X = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    >>> line = FeatureLinearization(X, torch.zeros(2))
    >>> line.jvp([torch.tensor([1.0, 1.0])]), line.vjp(torch.tensor([1.0, 1.0]))
    (tensor([3., 1.]), [tensor([1., 3.])])
    """

    def __init__(self, features: Tensor, weight: Tensor) -> None:
        self.features, self.params = features, [weight]
        self.scores = self.jvp([weight])

    def vjp(self, s: Scores, reuse: bool = False) -> list[Tensor]:
        """Xᵀ s, in the weight's shape."""
        (weight,), n = self.params, len(self.features)
        by_output = _mm(self.features.t(), parts(s)[0].to(weight.dtype).reshape(n, -1)).t()
        return [by_output.reshape(weight.shape)]

    def jvp(self, d: Sequence[Tensor]) -> Scores:
        """X d, ``[n, *out]``."""
        (weight,), n = self.params, len(self.features)
        return _mm(self.features, d[0].reshape(-1, weight.shape[-1]).t()).reshape(n, *weight.shape[:-1])

    def jacobian(self, chunk: int = 64) -> Tensor:
        """J as a dense ``[m, P]`` matrix: X once for each output."""
        X = self.features.to_dense() if self.features.is_sparse else self.features
        outputs = self.params[0].numel() // max(X.shape[1], 1)
        eye = torch.eye(outputs, dtype=X.dtype, device=X.device)
        return torch.einsum("nf,ok->nokf", X, eye).reshape(len(X) * outputs, -1)


def as_features(features: Any) -> Tensor:
    """Features as a floating-point tensor: dense, or sparse COO with its rows in order.

    Takes a dense tensor or array, a torch sparse tensor (COO, CSR or CSC) or a SciPy sparse matrix.

    >>> as_features([[1, 0], [0, 2]])
    tensor([[1., 0.],
            [0., 2.]])
    """
    if hasattr(features, "tocoo"):  # SciPy
        coo = features.tocoo()
        index = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
        values = torch.from_numpy(np.ascontiguousarray(coo.data))
        tensor = torch.sparse_coo_tensor(index, values, tuple(coo.shape), check_invariants=True)
    else:
        tensor = torch.as_tensor(features)
    if tensor.layout is not torch.strided:
        tensor = cast(Tensor, tensor.to_sparse_coo()).coalesce()  # type: ignore[no-untyped-call, unused-ignore]
    if tensor.dim() != 2:
        raise ValueError(f"features have shape {tuple(tensor.shape)}; expected [n, F], one row a sample")
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    return tensor.detach()


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return cast(Tensor, torch.sparse.mm(a, b)) if a.is_sparse else a @ b
