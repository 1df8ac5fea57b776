"""Linear SVMs and chains as scikit-learn estimators (the extra ``estimators``)."""

from proxsvm.estimators.linear_svm import LinearSVM
from proxsvm.estimators.linear_svr import LinearSVR
from proxsvm.estimators.structured import ChainCRFClassifier, ChainSVM

__all__ = ["ChainCRFClassifier", "ChainSVM", "LinearSVM", "LinearSVR"]
