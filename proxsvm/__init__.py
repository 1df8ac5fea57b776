"""proxsvm: every training step is a small SVM, solved in the dual.

criterion = MultiClassHinge(smooth=True)
optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), lr=0.1, momentum=0.9)
"""

from proxsvm.optimizer import ProxOptimizer, StepReport
from proxsvm.problem import DualPoint, ProxProblem
from proxsvm.version import __version__

__all__ = ["DualPoint", "ProxOptimizer", "ProxProblem", "StepReport", "__version__"]
