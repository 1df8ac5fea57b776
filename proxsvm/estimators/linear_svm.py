"""The linear SVM of classes, or of labels that are on or off."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array
from proxsvm._ranks import ranks_of
from proxsvm.estimators.base import LinearEstimator, float_type, sklearn_base, validation
from proxsvm.estimators.ranks import shares_errors, unique
from proxsvm.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    MultiClassHinge,
    MultiLabelHinge,
    SquaredHinge,
    WestonWatkinsHinge,
)
from proxsvm.losses.base import ConvexLoss

ClassifierMixin: Any = sklearn_base.ClassifierMixin
multiclass = load("sklearn.utils.multiclass", extra="estimators")
class_weights = load("sklearn.utils.class_weight", extra="estimators")
available_if = load("sklearn.utils.metaestimators", extra="estimators").available_if

OF_CLASSES = {"crammer_singer": MultiClassHinge, "weston_watkins": WestonWatkinsHinge, "log_loss": CrossEntropy}
OF_LABELS = {"hinge": MultiLabelHinge, "squared_hinge": SquaredHinge, "log_loss": BinaryCrossEntropy}


def _is_likelihood(estimator: Any) -> bool:
    return estimator.loss == "log_loss" or isinstance(estimator.loss, CrossEntropy | BinaryCrossEntropy)


@dataclass(eq=False, repr=False)
class LinearSVM(ClassifierMixin, LinearEstimator):  # type: ignore[misc]
    """min over w of ½‖w‖² + C Σ_i ℓ(x_i w; y_i), with Crammer and Singer's hinge unless another loss is given.

    One proximal problem from w = 0 with η = N·C, solved to a certified gap. The same objective as scikit-learn's
    ``LinearSVC(multi_class="crammer_singer")``, intercept (regularised) included.

    Args:
        C: the weight of the loss.
        loss: a loss over classes, which share one problem: "crammer_singer" (the default), "weston_watkins" or
            "log_loss" (multinomial logistic regression); or a loss of labels, each against the rest: "hinge" or
            "squared_hinge", as in ``LinearSVC``. Or any such loss of ``proxsvm.losses``, whose ``reduction`` must be
            "mean" (its class weights are relative: they are divided by their mean over the samples).
        class_weight: a dict from class to weight, or "balanced"; multiplies C for the samples of a class.
        tol: the certified relative gap (P − D)/P to reach.
        max_iter: at most this many passes over the data.
        fit_intercept: learn an intercept, as the weight of a constant feature.
        intercept_scaling: the value of that feature: the larger, the less the intercept is regularised.
        warm_start: start from the last dual solution, if it is feasible here (the same targets, and a loss with
            the same dual): for a path of C.
        random_state: of the order of the samples.
        verbose: print a line with the objective and the gap after each pass.
        solver: a :class:`~proxsvm.solvers.BlockFW` whose other options to use.
        process_group: ``"default"`` or a group of torch.distributed: each rank calls ``fit`` with its own rows, and all
            learn the same weights. None: this process has all rows.

    Learns ``coef_`` ``[K, F]`` (``[1, F]`` for two classes), ``intercept_``, ``classes_``, ``n_iter_`` (passes),
    ``dual_gap_`` and ``objective_`` (in the units of the formula above), ``n_features_in_``. With an indicator matrix
    y (multi-label) ``classes_`` are the columns, and the default loss is "hinge". There is no ``partial_fit``: the dual
    has a variable for each sample, so all of them are needed; ``warm_start`` continues from the last solution.

    >>> LinearSVM().fit([[0.0], [1.0], [2.0]], ["a", "b", "b"]).predict([[-1.0], [3.0]]).tolist()
    ['a', 'b']
    """

    losses: ClassVar[tuple[str, ...]] = (*OF_CLASSES, "hinge", "squared_hinge")

    loss: ConvexLoss | str | None = None
    _: KW_ONLY
    class_weight: Any = None

    @shares_errors
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearSVM:
        """Fit to features ``[n, F]``, dense or sparse, and any labels ``[n]``, or an indicator matrix ``[n, L]``.

        ``sample_weight``: ``[n]``; sample i has C·ω_i as its C. 0 leaves it out, 2 counts it twice.
        """
        self._check_options()
        X, y = self._check_data(X, y, multi_output=True)
        several = False
        if y.ndim > 1 or y.dtype.kind not in "biu":  # the check takes as long as a small fit
            multiclass.check_classification_targets(y)
            several = multiclass.type_of_target(y) == "multilabel-indicator"
            y = y if several else validation.column_or_1d(y, warn=True)
        loss = self._make_loss(several)
        indices: Any = None
        counts: Any = None
        if several:
            labels = (y.toarray() if hasattr(y, "toarray") else np.asarray(y)).astype(np.int64)
            self.classes_ = np.arange(labels.shape[1])
        else:
            self.classes_, indices, counts = unique(y, ranks_of(self.process_group))
            if len(self.classes_) < 2:
                found = f"the data contains only one class: {self.classes_.tolist()[0]!r}"
                raise ValueError(f"LinearSVM needs samples of at least 2 classes in the data, but {found}")
            labels = (indices[:, None] == np.arange(len(self.classes_))).astype(np.int64)
            labels = labels[:, 1:] if len(self.classes_) == 2 else labels
        by_label = isinstance(loss, tuple(OF_LABELS.values()))
        target, K = (labels, labels.shape[1]) if by_label else (indices, len(self.classes_))
        w = self._solve(loss, X, target, (K,), self._sample_weight(sample_weight, X, y, indices, counts))
        if K == 2 and not several:  # one vector separates two classes
            w, self.intercept_ = w[1:] - w[:1], self.intercept_[1:] - self.intercept_[:1]
        self.coef_, self._several = w, several
        return self

    def _make_loss(self, several: bool) -> ConvexLoss:
        if isinstance(self.loss, ConvexLoss):
            if several and not isinstance(self.loss, tuple(OF_LABELS.values())):
                raise ValueError(f"{type(self.loss).__name__} is a loss over classes, but y is an indicator matrix")
            return self.loss
        if several and self.loss in ("crammer_singer", "weston_watkins"):
            given = f"loss={self.loss!r} is over classes, but y is an indicator matrix"
            raise ValueError(f"{given}: use one of {[*OF_LABELS]}")
        names: dict[str, Any] = {**OF_CLASSES, **OF_LABELS} if several else {**OF_LABELS, **OF_CLASSES}
        loss: ConvexLoss = names[self.loss or ("hinge" if several else "crammer_singer")]()
        return loss

    def _sample_weight(self, sample_weight: Any, X: Any, y: Any, indices: Any, counts: Any) -> Array | None:
        """ω; ``indices`` and ``counts`` of the classes, None for an indicator matrix."""
        omega = self._checked_weight(sample_weight, X)
        if self.class_weight is None:
            return omega
        if indices is None:
            if ranks_of(self.process_group) is not None:
                raise ValueError("class_weight for an indicator matrix needs all rows; on ranks use sample_weight")
            of_class = class_weights.compute_sample_weight(self.class_weight, y)
        elif self.class_weight == "balanced":
            of_class = (counts.sum() / (len(counts) * counts))[indices]
        else:
            classes = self.classes_
            of_class = class_weights.compute_class_weight(self.class_weight, classes=classes, y=classes)[indices]
        of_class = of_class.astype(float_type(X))
        found: Array = of_class if omega is None else omega * of_class
        return found

    def decision_function(self, X: Any) -> Array:
        """The scores, ``[n, K]``; for two classes ``[n]``, positive for ``classes_[1]``."""
        scores = self._scores(X)
        return scores.ravel() if scores.shape[1] == 1 and not self._several else scores

    def predict(self, X: Any) -> Array:
        """The class with the largest score; of labels, those with a positive one, ``[n, L]``."""
        scores = self.decision_function(X)
        if self._several:
            return (scores > 0).astype(np.int64)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        labels: Array = self.classes_[best]
        return labels

    @available_if(_is_likelihood)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Array:
        """log p(y | x), ``[n, K]``, where the loss is a likelihood ("log_loss"); of labels, of each being on."""
        scores = self._scores(X)
        if scores.shape[1] == 1 and not self._several:
            scores = np.hstack([-scores, scores])
        logs: Array = -np.logaddexp(0.0, -scores)
        if not self._several and scores.shape[1] > 2:
            scores = logs if isinstance(self.loss, BinaryCrossEntropy) else scores  # one class against the rest
            logs = scores - np.logaddexp.reduce(scores, 1, keepdims=True)
        return logs

    @available_if(_is_likelihood)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """p(y | x), ``[n, K]``, where the loss is a likelihood ("log_loss"); of labels, of each being on."""
        p: Array = np.exp(self.predict_log_proba(X))
        return p

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        by_label = self.loss in (None, *OF_LABELS) or isinstance(self.loss, tuple(OF_LABELS.values()))
        tags.classifier_tags.multi_label = by_label
        return tags
