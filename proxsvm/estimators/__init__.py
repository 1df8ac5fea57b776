"""Linear SVMs as scikit-learn estimators (the extra ``estimators``)."""

from proxsvm.estimators.linear_svm import LinearSVM
from proxsvm.estimators.linear_svr import LinearSVR

__all__ = ["LinearSVM", "LinearSVR"]
