"""Values and marginals agree with torch-struct's, for the distributions that both have."""

from typing import Any

import pytest
import torch
from torch import Tensor

from proxsvm.losses import CRF
from proxsvm.structures import Chain, ProjectiveTree, Segments, SpanningTree, Spans, Structure, log_sum_exp

torch_struct = pytest.importorskip("torch_struct")
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch-struct

B, T, K = 3, 5, 3
LENGTHS = torch.tensor([5, 2, 4])


def chain(own: Tensor) -> tuple[Any, Any]:
    """φ(n, z', z), without unary scores."""
    return own.transpose(2, 3), lambda edge: edge.transpose(2, 3)


def dependencies(u: Tensor) -> tuple[Any, Any]:
    """The root's scores are on the diagonal."""
    arcs = u[:, 1:, 1:].diagonal_scatter(u[:, 0, 1:], 0, 1, 2)

    def back(x: Tensor) -> Tensor:
        found = torch.zeros_like(u)
        found[:, 1:, 1:] = x - torch.diag_embed(x.diagonal(0, 1, 2))
        found[:, 0, 1:] = x.diagonal(0, 1, 2)
        return found

    return arcs, back


def segments(u: Tensor) -> tuple[Any, Any]:
    """φ(n, length, z', z), which does not depend on z: every labelling counts once for each label before the first."""
    edge = torch.cat([torch.full_like(u[:, :, :1], -1e9), u], 2)[..., None].expand(*u.shape[:2], -1, K, K).clone()
    edge[:, 0] -= torch.tensor(float(K)).log()
    return edge, lambda x: x.sum(4)[:, :, 1:]


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "lengths"])
@pytest.mark.parametrize(
    ("structure", "theirs", "convert", "shape", "options"),
    [
        (Chain(), "LinearChainCRF", chain, (B, T - 1, K, K), {}),
        (ProjectiveTree(), "DependencyCRF", dependencies, (B, T + 1, T + 1), {"multiroot": False}),
        (SpanningTree(), "NonProjectiveDependencyCRF", dependencies, (B, T + 1, T + 1), {"multiroot": False}),
        (Spans(), "TreeCRF", lambda u: (u, lambda x: x), (B, T, T, K), {}),
        (Segments(), "SemiMarkovCRF", segments, (B, T, 3, K), {}),
    ],
    ids=["chain", "projective", "spanning", "spans", "segments"],
)
def test_it_is_torch_structs(structure: Structure, theirs: str, convert, shape, options, lengths):
    if lengths is not None and isinstance(structure, (SpanningTree, Segments)):
        pytest.skip("torch-struct has no lengths for spanning trees, and for segments not those of the enumeration")
    u = torch.randn(shape)
    given, back = convert(u)
    leaf = given.clone().requires_grad_()
    other = getattr(torch_struct, theirs)(1 * leaf, lengths=lengths, **options)
    scores = (torch.zeros(B, T, K), u) if isinstance(structure, Chain) else u
    known = {} if lengths is None else {"lengths": lengths}
    prepared, sample = structure.prepare("test", scores, None, **known)
    close = {"rtol": 0, "atol": 1e-4 if isinstance(structure, SpanningTree) else 1e-6}  # it adds 1e-5 to a determinant
    torch.testing.assert_close(structure.total(prepared, sample, log_sum_exp), other.partition.detach(), **close)
    mine = CRF(structure).marginals(scores, **known)
    torch.testing.assert_close(mine[1] if isinstance(mine, tuple) else mine, back(other.marginals.detach()), **close)
    if not isinstance(structure, SpanningTree):  # torch-struct has no best one
        best = structure.best(structure.expand(prepared, sample), sample)
        torch.testing.assert_close(best[1] if isinstance(best, tuple) else best, back(other.argmax.detach()), **close)
