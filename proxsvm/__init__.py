"""proxsvm: linearise the network, keep the loss exact, solve every training step in the dual.

criterion = CrossEntropy()
optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters())
"""

from proxsvm.optimizer.follow import follow, refresh_batch_norm, unfollow
from proxsvm.optimizer.prox_optimizer import ProxOptimizer, StepReport
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.version import __version__

__all__ = [
    "DualPoint",
    "ProxOptimizer",
    "ProxProblem",
    "StepReport",
    "__version__",
    "follow",
    "refresh_batch_norm",
    "unfollow",
]
