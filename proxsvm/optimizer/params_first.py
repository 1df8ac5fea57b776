"""A ProxOptimizer whose parameters come first, for factories that rely on this convention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from proxsvm.losses.base import ConvexLoss
from proxsvm.optimizer.prox_optimizer import ProxOptimizer
from proxsvm.solvers.base import DualSolver
from proxsvm.solvers.single_step_fw import SingleStepFW


class ParamsFirst(ProxOptimizer):
    """``ProxOptimizer`` for factories that call ``cls(params, **options)``: skorch, LightningCLI, timm-like scripts.

    Nothing else differs. The training loop has to call the optimizer's own criterion, ``optimizer.loss``: pass skorch
    the same object as ``criterion`` and as ``optimizer__loss``, and in a LightningModule call
    ``self.optimizers().loss(scores, y)``.

    Args:
        params: parameters or group dicts.
        loss: the criterion.
        solver: ``SingleStepFW()`` if None.
        options: those of :class:`~proxsvm.ProxOptimizer`.

    >>> import torch
    >>> from proxsvm.losses import CrossEntropy
    >>> optimizer = ParamsFirst(torch.nn.Linear(2, 3).parameters(), loss=CrossEntropy(), lr=0.5)
    >>> optimizer.solver, optimizer.param_groups[0]["lr"]
    (SingleStepFW(), 0.5)
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
        loss: ConvexLoss,
        solver: DualSolver | None = None,
        **options: Any,
    ) -> None:
        super().__init__(loss, SingleStepFW() if solver is None else solver, params, **options)
