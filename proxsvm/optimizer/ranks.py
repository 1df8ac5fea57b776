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
import torch.distributed as dist
from torch import Tensor

from proxsvm._kernels.tensors import PLAIN
from proxsvm._ranks import Ranks
from proxsvm.geometry import Geometry
from proxsvm.linearization.graph import Linearization, leaves
from proxsvm.losses.base import Origin, Scores
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem


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


def is_sharded(p: Tensor) -> bool:
    """Whether ``p`` is a DTensor."""
    return type(p) not in PLAIN and hasattr(p, "placements") and hasattr(p, "to_local")


def any_sharded(params: Sequence[Tensor]) -> bool:
    """Whether one of ``params`` is a DTensor."""
    return not PLAIN.issuperset(map(type, params)) and any(map(is_sharded, params))


def _mesh(p: Tensor) -> Any:
    return getattr(p, "device_mesh", None)


def local(p: Tensor) -> Tensor:
    """This rank's part of ``p``, sharing its memory; ``p`` itself where it is a plain tensor."""
    part: Tensor = p.to_local() if is_sharded(p) else p  # type: ignore[attr-defined]
    return part


def local_grad(p: Tensor) -> Tensor:
    """This rank's part of the gradient of ``p``, sharded like ``p``."""
    grad = p.grad
    assert grad is not None
    if is_sharded(p) and grad.placements != p.placements:  # type: ignore[attr-defined]
        grad = grad.redistribute(placements=p.placements)  # type: ignore[attr-defined]
    return local(grad)


def copies(p: Tensor, ranks: int) -> int:
    """How many of the ranks hold the same part of ``p``: all of them for a plain tensor, one under plain FSDP2."""
    if not is_sharded(p):
        return ranks
    sizes: list[int] = [_mesh(p).size(k) for k, place in enumerate(p.placements) if not place.is_replicate()]  # type: ignore[attr-defined]
    if ranks % prod(sizes):
        raise RuntimeError(
            f"a parameter is sharded over {prod(sizes)} ranks, but the optimizer's process group has {ranks}: give "
            "process_group the ranks of the whole device mesh (or leave it at 'default')"
        )
    return ranks // prod(sizes)


class ShardedGeometry(Geometry):
    """The geometry of this rank's shards ``params`` of the DTensors ``owners``: local inner products add up over the
    ranks, each shard counted once.
    """

    def __init__(self, *args: Any, owners: Sequence[Tensor], ranks: Ranks | None, **options: Any) -> None:
        if ranks is None and any(
            copies(p, mesh.size()) < mesh.size() for p in owners if (mesh := _mesh(p)) is not None
        ):
            raise RuntimeError(
                "a parameter is sharded over several ranks (DTensor), but this optimizer has no process group to sum "
                "over: leave process_group at 'default', or give it the ranks of the device mesh"
            )
        shares = None if ranks is None else [1 / copies(p, ranks.size) for p in owners]
        super().__init__(*args, shares=shares, **options)
        self._ranks = ranks

    def reduce(self, numbers: Sequence[Tensor]) -> Sequence[Tensor]:
        """Σ over the ranks, in one reduction."""
        if self._ranks is None:
            return numbers
        total = torch.stack([x.to(numbers[0]) for x in numbers])
        dist.all_reduce(total, group=self._ranks.group)
        return list(total)


# The problem of a closure: autograd.grad does not fire the hooks of DDP, so each vjp is averaged here.


class AveragedLinearization(Linearization):
    """J of this rank's samples, as in :meth:`jvp` and :meth:`jacobian`; Jᵀ s averaged over the ranks."""

    def __init__(self, scores: Scores, params: Sequence[Tensor], ranks: Ranks) -> None:
        super().__init__(scores, params)
        self._ranks = ranks

    def vjp(self, s: Scores, *options: Any, **named: Any) -> list[Tensor]:
        """(1/R) Σ_ranks Jᵀ s: every rank must call it."""
        return self._ranks.mean(super().vjp(s, *options, **named))


class AveragedProblem(ProxProblem):
    """The problem averaged over ranks. Every rank must call the same methods in the same order."""

    ranks: Ranks

    @classmethod
    def averaged(cls, origin: Origin, geometry: Geometry, ranks: Ranks) -> AveragedProblem:
        """The averaged problem of this rank's loss value."""
        problem = cls(geometry, origin, AveragedLinearization(origin.scores, geometry.params, ranks))
        problem.ranks = ranks
        return problem

    on_ranks = True

    def mean(self, value: Tensor) -> Tensor:
        """(1/R) Σ_ranks value."""
        return self.ranks.mean([value])[0]

    def gather(self, rows: Tensor) -> tuple[Tensor, slice]:
        """The rows of all ranks, one after another, and which of them are this rank's."""
        found, rank = self.ranks.gather(rows.detach().cpu()), self.ranks.rank
        begin = sum(map(len, found[:rank]))
        return torch.cat(found).to(rows.device), slice(begin, begin + len(rows))

    def check(self, point: DualPoint, solver: object) -> None:
        """Raise if a solver has bypassed the averages, so that the replicas would drift apart. It synchronises."""
        largest = torch.stack([point.lam, point.gamma.to(point.lam), -point.lam, -point.gamma.to(point.lam)])
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.ranks.group)
        if largest.isfinite().all() and (largest[:2] != -largest[2:]).any():
            raise RuntimeError(
                f"{solver!r} found different dual points on different ranks, and nothing was changed: on several ranks "
                "a solver may use the samples only through expect() and linearization.vjp(), as MultiStepFW does"
            )


def reached(scores: Scores, params: Sequence[Tensor], ranks: Ranks | None) -> set[int]:
    """The ids of the parameters that the scores depend on, on any rank."""
    mine = leaves(scores)
    if ranks is None or not params:
        return mine
    flags = torch.tensor([id(p) in mine for p in params], dtype=torch.int32, device=params[0].device)
    dist.all_reduce(flags, dist.ReduceOp.MAX, group=ranks.group)
    return {id(p) for p, flag in zip(params, flags.tolist(), strict=True) if flag}
