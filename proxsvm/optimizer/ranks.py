"""Training in several processes: what has to be averaged over ranks, or summed over shards.

Data-parallel training averages the gradients over the ranks, so the problem of a step is the average, too:

    P(d) = ‖d‖²/(2η) + ⟨r, d⟩ + (1/R) Σ_ranks Σ_i p_i ℓ(u_i + J_i d; y_i)

Each rank has the weight 1/R, as in its gradients, however many samples it has. If parameters are sharded (FSDP2), an
inner product of vectors is the sum over the shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.tensors import PLAIN
from proxsvm._ranks import Ranks
from proxsvm.geometry import Geometry
from proxsvm.linearization.graph import Linearization, leaves
from proxsvm.losses.base import Scores


def check_replicas(ranks: Ranks, params: Sequence[Tensor]) -> None:
    """Raise unless every rank has the same parameters; once, before the first step."""
    mine = [(tuple(p.shape), None if is_sharded(p) else repr(float(p.detach().double().sum()))) for p in params]
    theirs = ranks.gather(mine)
    odd = [rank for rank, other in enumerate(theirs) if other != theirs[0]]
    if odd:
        raise RuntimeError(
            f"the optimizers of ranks 0 and {odd} hold different parameters, so no γ would be right for all. Use "
            "DistributedDataParallel or, to save memory, fully_shard instead of ZeroRedundancyOptimizer, before "
            "the first step. Ranks that train models of their own: process_group=None"
        )


def agree(ranks: Ranks, space: Geometry, scalars: Sequence[Tensor]) -> None:
    """Give all ranks the outcome of the first rank's step, where a metric has refreshed its bases.

    A decomposition need not be the same bit for bit everywhere, and where eigenvalues are close not even nearly.
    """
    tensors: list[Tensor] = []
    for bucket in space.buckets:
        kept, metric = bucket.kept, bucket.group.metric
        counts = [x for own in kept.metric for x in own.values() if isinstance(x, int)]  # of the present bases
        if not metric.elementwise and any((n - 1) % getattr(metric, "every", 1) == 0 for n in counts or [1]):
            learned = (own.get(name) for own in kept.metric for name in metric.state)
            tensors += [*bucket.w, *(x for vector in kept.vectors.values() for x in vector)]
            tensors += [x for x in learned if isinstance(x, Tensor)]
    if tensors and not torch.compiler.is_compiling():
        ranks.broadcast([*tensors, *scalars])


# Shards. A DTensor is recognised by its attributes, so that its package is imported only by those who use it.


def is_sharded(p: Any) -> bool:
    """Whether ``p`` is a DTensor."""
    return type(p) not in PLAIN and hasattr(p, "placements") and hasattr(p, "to_local")


def any_sharded(params: Sequence[Tensor]) -> bool:
    """Whether one of ``params`` is a DTensor."""
    return not PLAIN.issuperset(map(type, params)) and any(map(is_sharded, params))


def local(p: Any) -> Tensor:
    """This rank's part of ``p``, sharing its memory; ``p`` itself where it is a plain tensor."""
    part: Tensor = p.to_local() if is_sharded(p) else p
    return part


def local_grad(p: Any) -> Tensor:
    """This rank's part of the gradient of ``p``, sharded like ``p``."""
    differs = is_sharded(p) and p.grad.placements != p.placements
    return local(p.grad.redistribute(placements=p.placements) if differs else p.grad)


def shards(p: Any) -> int:
    """Over how many ranks ``p`` is spread: 1 for a plain tensor, of which each rank has a copy."""
    if not is_sharded(p):
        return 1
    return prod(p.device_mesh.size(k) for k, place in enumerate(p.placements) if not place.is_replicate())


def shares(owners: Sequence[Tensor], ranks: Ranks | None) -> list[float]:
    """The weights of the parameters' inner products in a sum over the ranks, so that each shard counts once."""
    spread, size = [shards(p) for p in owners], 1 if ranks is None else ranks.size
    if any(size % n for n in spread):
        raise RuntimeError(
            f"a parameter is sharded over {max(spread)} ranks (DTensor), the optimizer sums over {size}: leave "
            "process_group at 'default', or give it the ranks of the whole device mesh"
        )
    return [n / size for n in spread]


# The problem of a closure: autograd.grad does not fire the hooks of DDP, so each vjp is averaged here.


class AveragedLinearization(Linearization):
    """J of this rank's samples, as in :meth:`jvp` and :meth:`jacobian`; Jᵀ s averaged over the ranks."""

    def __init__(self, scores: Scores, params: Sequence[Tensor], ranks: Ranks) -> None:
        super().__init__(scores, params)
        self._ranks = ranks

    def vjp(self, s: Scores, *options: Any, **named: Any) -> list[Tensor]:
        """(1/R) Σ_ranks Jᵀ s: every rank must call it."""
        return self._ranks.mean(super().vjp(s, *options, **named))


def reached(scores: Scores, params: Sequence[Tensor], ranks: Ranks | None) -> set[int]:
    """The ids of the parameters that the scores depend on, on any rank."""
    mine = leaves(scores)
    if ranks is None or not params:
        return mine
    flags = ranks.max(torch.tensor([id(p) in mine for p in params], dtype=torch.int32, device=params[0].device))
    return {id(p) for p, flag in zip(params, flags.tolist(), strict=True) if flag}
