"""The multi-class linear SVM."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array
from proxsvm.estimators.base import LinearEstimator, sklearn_base
from proxsvm.losses import MultiClassHinge

ClassifierMixin: Any = sklearn_base.ClassifierMixin
multiclass = load("sklearn.utils.multiclass", extra="estimators")


class LinearSVM(ClassifierMixin, LinearEstimator):  # type: ignore[misc]
    """min over w of ½‖w‖² + C Σ_i ℓ(x_i w; y_i), with Crammer and Singer's hinge unless another loss is given.

    One proximal problem from w = 0 with η = N·C, solved to a certified gap. The same objective as scikit-learn's
    ``LinearSVC(multi_class="crammer_singer")``, intercept (regularised) included.

    Args:
        C: the weight of the loss.
        loss: any loss over classes, ``MultiClassHinge()`` if None; its ``reduction`` must be "mean". Its class
            weights are relative: they are divided by their mean over the samples.
        tol: the certified relative gap (P − D)/P to reach.
        max_iter: at most this many passes over the data.
        fit_intercept: learn an intercept, as the weight of a constant feature.
        intercept_scaling: the value of that feature: the larger, the less the intercept is regularised.
        warm_start: start from the last dual solution, if it is feasible here (the same targets, and a loss with
            the same dual): for a path of C.
        random_state: of the order of the samples.
        solver: a :class:`~proxsvm.solvers.BlockFW` whose other options to use.

    Learns ``coef_`` ``[K, F]`` (``[1, F]`` for two classes), ``intercept_``, ``classes_``, ``n_iter_`` (passes),
    ``dual_gap_`` and ``objective_`` (in the units of the formula above), ``n_features_in_``.

    >>> LinearSVM().fit([[0.0], [1.0], [2.0]], ["a", "b", "b"]).predict([[-1.0], [3.0]]).tolist()
    ['a', 'b']
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearSVM:
        """Fit to features ``[n, F]``, dense or sparse, and any labels ``[n]``.

        ``sample_weight``: ``[n]``; sample i has C·ω_i as its C. 0 leaves it out, 2 counts it twice.
        """
        self._check_options()
        X, y = self._check_data(X, y)
        multiclass.check_classification_targets(y)
        self.classes_, target = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"LinearSVM needs samples of at least 2 classes in the data, but the data contains only one class: "
                f"{self.classes_[0]!r}"
            )
        w = self._solve(self.loss or MultiClassHinge(), X, target, sample_weight)
        if len(self.classes_) == 2:  # one vector separates two classes
            w, self.intercept_ = w[1:] - w[:1], self.intercept_[1:] - self.intercept_[:1]
        self.coef_ = w
        return self

    def decision_function(self, X: Any) -> Array:
        """The scores, ``[n, K]``; for two classes ``[n]``, positive for ``classes_[1]``."""
        scores = self._scores(X)
        return scores.ravel() if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Array:
        """The class with the largest score."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        labels: Array = self.classes_[best]
        return labels
