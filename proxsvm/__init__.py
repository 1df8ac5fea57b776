"""proxsvm: every training step is a small SVM, solved in the dual.

criterion = MultiClassHinge(smooth=True)
optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), lr=0.1, momentum=0.9)
"""

from proxsvm.optimizer.batch_norm import refresh_batch_norm
from proxsvm.optimizer.follow import follow, unfollow
from proxsvm.optimizer.prox_optimizer import ProxOptimizer
from proxsvm.optimizer.report import StepReport
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
