"""ProxOptimizer, and what it needs to work in PyTorch training stacks."""

from proxsvm.optimizer.groups import no_decay
from proxsvm.optimizer.prox_optimizer import ProxOptimizer, StepReport

__all__ = ["ProxOptimizer", "StepReport", "no_decay"]
