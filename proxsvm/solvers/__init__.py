"""Dual solvers: each takes a problem and returns a dual point."""

from proxsvm.solvers.base import Callback, DualSolver, Trace
from proxsvm.solvers.block_fw import BlockFW
from proxsvm.solvers.corrective_fw import CorrectiveFW
from proxsvm.solvers.exact_qp import ExactQP
from proxsvm.solvers.multi_step_fw import MultiStepFW
from proxsvm.solvers.single_step_fw import SingleStepFW

__all__ = ["BlockFW", "Callback", "CorrectiveFW", "DualSolver", "ExactQP", "MultiStepFW", "SingleStepFW", "Trace"]
