"""Linear support vector regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from proxsvm._kernels.tensors import Array
from proxsvm.estimators.base import LinearEstimator, float_type, sklearn_base
from proxsvm.estimators.ranks import shares_errors
from proxsvm.losses import Huber, L1Regression, SquaredError
from proxsvm.losses.base import ConvexLoss

RegressorMixin: Any = sklearn_base.RegressorMixin

NAMES: dict[str, Any] = {  # the first two have a band
    "epsilon_insensitive": L1Regression,
    "squared_epsilon_insensitive": SquaredError,
    "squared_error": SquaredError,
    "huber": Huber,
}


@dataclass(eq=False, repr=False)
class LinearSVR(RegressorMixin, LinearEstimator):  # type: ignore[misc]
    """min over w of ½‖w‖² + C Σ_i max(0, |x_i w − y_i| − ε), or with another regression loss in its place.

    The same objective as scikit-learn's ``LinearSVR``; ``loss=QuantileRegression(0.9)`` makes it a quantile
    regression.

    Args:
        C: the weight of the loss.
        epsilon: the band of the first two losses, within which an error is free.
        loss: "epsilon_insensitive" (the default, ``L1Regression(epsilon)``), "squared_epsilon_insensitive"
            (``SquaredError(epsilon)``), "squared_error" (ridge regression), "huber", or any loss of
            ``proxsvm.losses`` with one prediction per sample.

    The other arguments are those of :class:`LinearSVM`: ``tol``, ``max_iter``, ``fit_intercept``,
    ``intercept_scaling``, ``warm_start``, ``random_state``, ``verbose``, ``solver`` and ``process_group``.

    Learns ``coef_`` ``[F]``, ``intercept_``, ``n_iter_``, ``dual_gap_``, ``objective_``, ``n_features_in_``.

    >>> model = LinearSVR(C=100.0).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> model.predict([[3.0]]).round(2).tolist()
    [7.0]
    """

    losses: ClassVar[tuple[str, ...]] = tuple(NAMES)

    epsilon: float = 0.0
    loss: ConvexLoss | str | None = None

    @shares_errors
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearSVR:
        """Fit to features ``[n, F]``, dense or sparse, and real targets ``[n]``.

        ``sample_weight``: ``[n]``; sample i has C·ω_i as its C. 0 leaves it out, 2 counts it twice.
        """
        self._check_options()
        X, y = self._check_data(X, y, y_numeric=True)
        loss = self.loss or "epsilon_insensitive"
        if isinstance(loss, str):
            loss = NAMES[loss](*[self.epsilon] * loss.endswith("insensitive"))
        omega = self._checked_weight(sample_weight, X)
        self.coef_ = self._solve(loss, X, y.astype(float_type(X), copy=False), (), omega)
        return self

    def predict(self, X: Any) -> Array:
        """x w + intercept, ``[n]``."""
        return self._scores(X).ravel()
