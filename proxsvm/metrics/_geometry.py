"""The metrics of all parameter groups, bound to the parameters of one problem: the only part that knows η.

With H = M/η in each group and r = decay · M w, the inner product of the dual is ⟨a, b⟩ = ⟨a, H⁻¹ b⟩, so that

    ⟨a, b⟩ = Σ_g η ⟨a, M⁻¹ b⟩_g        ⟨r, x⟩ = Σ_g η decay ⟨w, x⟩_g        ‖r‖² = Σ_g η decay² ⟨w, M w⟩_g
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from proxsvm._kernels.passes import Tensors, compare
from proxsvm._kernels.scalars import coefficients, weighed
from proxsvm._kernels.step import StepKernels
from proxsvm._numbers import Number, times, to_float, total
from proxsvm.metrics._cell import Cell, Memory, of_a_kind
from proxsvm.metrics._groups import Group
from proxsvm.metrics.base import dots
from proxsvm.point import DualPoint, Products, factored


class Geometry:
    """Inner products, H⁻¹x and the update, over all groups.

    Args:
        params: w_t.
        groups: η, weight decay and metric of ranges of ``params``.
        kernels: the passes over memory; torch's own operations if None.
        shares: the weight of each parameter's inner products in a sum over ranks, 1 for all if None.
        memory: the state left by earlier steps, for metrics and updates that need it.

    >>> w = torch.tensor([3.0, 4.0])
    >>> space = Geometry([w], [Group(eta=0.5, decay=0.1, at=range(1))])
    >>> space.inner([w], [w]), space.displacement([torch.ones(2)])         # 0.5 · 25, and −0.5 · (0.1 w + 1)
    (tensor(12.5000), [tensor([-0.6500, -0.7000])])
    """

    def __init__(
        self,
        params: list[Tensor],
        groups: list[Group],
        kernels: StepKernels | None = None,
        shares: Sequence[float] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.params, self.groups = params, groups
        memory = Memory() if memory is None else memory
        self._r_squared: Number | None = None
        kernels = StepKernels(fused=False) if kernels is None else kernels
        self.cells = [
            Cell(group, at, _chosen(params, at), kernels, 1.0 if shares is None else shares[at[0]], memory)
            for group in groups
            for at in of_a_kind(params, group, shares, memory.kinds)
        ]
        if len(self.cells) == 1:
            self.cells[0].whole = True

    @property
    def observes(self) -> bool:
        """Whether a metric or η itself depends on the first direction of a step."""
        return any(cell.group.metric.state or cell.group.auto for cell in self.cells)

    def observe(self, x: Tensors, scale: Number = 1.0) -> None:
        """Fix the metrics by the first direction of the step, scale · x."""
        for cell in self.cells:
            cell.group.metric.observe(cell, cell.of(x), scale)
        auto = [cell for cell in self.cells if cell.group.auto]
        if auto:
            sums = [(cell.share, cell.sums(cell.of(x))) for cell in auto]
            xx, ww, uu = self.reduce([total([p * s[k] for p, s in sums]) for k in (0, 2, 3)])
            auto[0].memory.find(start=ww, distance=uu, squares=scale * scale * xx)

    sharded = False  # whether this rank holds only a part of the parameters

    def reduce(self, numbers: Sequence[Number]) -> Sequence[Number]:
        """Sums over this rank's shards as sums over all of them."""
        return numbers

    # Inner products.

    def products(self, x: Sequence[Tensor]) -> Products:
        """⟨r, x⟩, ‖x‖² and −½‖r‖²: all that a single step needs from its vectors, in one pass over them."""
        return Products(*self.reduce(self.local_products(x)))

    def local_products(self, x: Sequence[Tensor]) -> list[Number]:
        """The same over this rank's parameters."""
        rows = []
        for cell in self.cells:
            sums = cell.sums(cell.of(x), cell.group.decay != 0)
            rows.append(weighed(sums, times(cell.eta_for(sums.xx), cell.share), cell.group.decay))
        return [total([row[k] for row in rows]) for k in range(3)]

    def inner(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Number:
        """⟨a, b⟩ = ⟨a, H⁻¹ b⟩."""
        terms = (
            cell.eta * cell.share * dots(cell.of(a), cell.group.metric.solve(cell, cell.of(b))) for cell in self.cells
        )
        return self.reduce([total(list(terms))])[0]

    def inner_r(self, x: Sequence[Tensor]) -> Number:
        """⟨r, x⟩, without forming r."""
        terms = (
            cell.eta * cell.share * cell.group.decay * dots(cell.w, cell.of(x))
            for cell in self.cells
            if cell.group.decay
        )
        return self.reduce([total(list(terms))])[0]

    def r_squared(self) -> Number:
        """‖r‖²; it is constant for a problem, and is computed once."""
        if self._r_squared is None:
            terms = [
                cell.eta * cell.share * cell.group.decay**2 * dots(cell.w, cell.group.metric.times(cell, cell.w))
                for cell in self.cells
                if cell.group.decay
            ]
            self._r_squared = self.reduce([total(terms)])[0]
        return self._r_squared

    def local_squared_length(self, x: Sequence[Tensor]) -> Number:
        """Σ x² over this rank's parameters, without a metric: for the bound on the gradient norm."""
        return total([cell.share * cell.squared_length(cell.of(x)) for cell in self.cells])

    # Vectors.

    def solve(self, x: Sequence[Tensor]) -> list[Tensor]:
        """H⁻¹ x, one tensor per parameter."""
        return self._gather(
            lambda cell: [cell.eta * y for y in cell.group.metric.solve(cell, [t.detach() for t in cell.of(x)])]
        )

    def displacement(self, delta: Sequence[Tensor]) -> list[Tensor]:
        """d = −H⁻¹ (r + delta), one tensor per parameter."""

        def of(cell: Cell) -> list[Tensor]:
            decay = cell.group.decay
            step = cell.group.metric.solve(cell, [t.detach() for t in cell.of(delta)])
            if decay:
                step = [torch.add(y, w.detach(), alpha=decay) for y, w in zip(step, cell.w, strict=True)]
            return [-cell.eta * y for y in step]

        return self._gather(of)

    def scale(self) -> float | None:
        """The scalar a of H⁻¹ = a · 1, where it is the same for all parameters; else None."""
        scales = {to_float(cell.eta) if cell.group.metric.identity else None for cell in self.cells}
        return scales.pop() if len(scales) == 1 else None

    def r_plus(self, delta: Sequence[Tensor]) -> Sequence[Tensor]:
        """r + delta with r = decay · M w, the gradient of the regularisation, one tensor per parameter."""

        def of(cell: Cell) -> Sequence[Tensor]:
            own, decay = [t.detach() for t in cell.of(delta)], cell.group.decay
            if not decay:
                return own
            r = cell.group.metric.times(cell, [w.detach() for w in cell.w])
            return [torch.add(a, b, alpha=decay) for a, b in zip(own, r, strict=True)]

        return self._gather(of)

    def r(self) -> Sequence[Tensor]:
        """r = decay · M w."""
        return self.r_plus([torch.zeros_like(w) for w in self.params])

    def root(self, rows: Tensor) -> Tensor:
        """``rows`` · H^(−1/2) of a dense ``[k, P]`` matrix over all flattened parameters: J H⁻¹ Jᵀ is its square."""
        sizes = [w.numel() for w in self.params]
        pieces = list(torch.split(rows, sizes, 1))
        for cell in self.cells:
            joined = cell.group.metric.root(cell, torch.cat([pieces[i] for i in cell.at], 1))
            scaled = joined * cell.eta**0.5
            for i, piece in zip(cell.at, torch.split(scaled, [sizes[i] for i in cell.at], 1), strict=True):
                pieces[i] = piece
        return torch.cat(pieces, 1)

    def _gather(self, part: Callable[[Cell], Sequence[Tensor]]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for cell in self.cells:
            found.update(zip(cell.at, part(cell), strict=True))
        return [found[i] for i in range(len(self.params))]

    # The update.

    def _kept(self, cell: Cell) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """The velocities and averages of a cell, None where there are none; checked before other cells change."""
        z = cell.state("z") if cell.group.momentum else None
        mean = None if cell.group.average is None else cell.state("average")
        if not cell.whole or cell.steps is not None:  # else its passes check them, before they change anything
            for what, tensors in (("velocity", z), ("average", mean)):
                if tensors is not None:
                    compare(what, cell.w, tensors)
        return z, mean

    def advance(self, point: DualPoint, skip: bool | Tensor = False) -> bool | Tensor:
        """z ← μ z − H⁻¹ (gamma · r + delta),   w ← w − H⁻¹ (r + delta) + μ z;   nothing at all where ``skip`` holds.

        A group with η = 0 does not change, nor does its velocity: the paper's z contains η and would keep moving. The
        average of the weights is w̄ ← β w̄ + (1 − β) w with β = min(average, (1 + t)/(10 + t)) after t steps.

        Args:
            point: a dual point of the problem.
            skip: a bool, or a 0-dim bool tensor that is not read on the host.

        Returns whether nothing has moved, as a bool or a tensor like ``skip`` and η.
        """
        factor, x = factored(point.delta)
        kept = [(cell, cell.eta_for(factor), *self._kept(cell)) for cell in self.cells]  # all, before anything moves
        moving = [row for row in kept if isinstance(row[1], Tensor) or row[1] != 0]
        last = {id(cell.steps): cell for cell, *_ in moving}  # several cells may share one count
        stays: list[bool | Tensor] = []
        for cell, eta, z, mean in moving:
            group, t = cell.group, cell.steps
            counts = last[id(t)] is cell
            update = coefficients(
                eta, group.decay, factor, point.gamma, skip, mu=group.momentum, average=group.average, t=t, count=counts
            )
            group.metric.advance(cell, cell.of(x), z, mean, update)
            stays.append(update.skip)
        if any(cell.group.auto for cell in self.cells):
            self.cells[0].memory.commit(skip)
        return _all(stays)


def _chosen(params: list[Tensor], at: Sequence[int]) -> list[Tensor]:
    return params[at.start : at.stop] if isinstance(at, range) else [params[i] for i in at]


def _all(flags: Sequence[bool | Tensor]) -> bool | Tensor:
    """Whether all flags hold; a Python bool where all of them are."""
    tensors = [flag for flag in flags if isinstance(flag, Tensor)]
    if not tensors or any(flag is False for flag in flags):
        return all(flag is True for flag in flags)
    if len(tensors) == 1:
        return tensors[0]
    return torch.stack([flag.to(tensors[0].device) for flag in tensors]).all()
