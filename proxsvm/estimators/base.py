"""What the two estimators share: from data to a proximal problem, to a solution."""

from __future__ import annotations

import functools
import math
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np
import torch

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array
from proxsvm._ranks import ProcessGroup, ranks_of
from proxsvm.estimators.primal import Primal
from proxsvm.estimators.ranks import Found, Shard, agree, blocks_of, exchange, is_mapped, solve_in_rounds
from proxsvm.losses import BinaryCrossEntropy, CrossEntropy, Huber, SquaredError, SquaredHinge
from proxsvm.losses.base import Atom, ConvexLoss, PiecewiseLinearLoss
from proxsvm.problem import ProxProblem
from proxsvm.solvers import BlockFW, Trace
from proxsvm.solvers._arrays import to_numpy
from proxsvm.solvers._block.base import is_feasible
from proxsvm.solvers.base import Callback, Progress, check_options

sklearn_base = load("sklearn.base", extra="estimators")
sklearn_utils = load("sklearn.utils", extra="estimators")
validation = load("sklearn.utils.validation", extra="estimators")
exceptions = load("sklearn.exceptions", extra="estimators")
BaseEstimator: Any = sklearn_base.BaseEstimator
TINY = 50, 20_000  # rows, and rows × weights: such a problem is solved to the last digit, which takes no time
KINKED, SMOOTH = 1e-13, 1e-20  # the relative gap at the last digit: linear, or quadratic, in the error of the weights
LARGE = 1e38  # what float32 can hold
SQUARED = Huber, SquaredError, SquaredHinge
MANY = 100_000_000  # multiplications of X Wᵀ from which several threads gain more than they wait for each other


@dataclass(eq=False, repr=False)
class LinearEstimator(BaseEstimator):  # type: ignore[misc]
    """min over w of ½‖w‖² + C Σ_i ω_i ℓ(x_i w; y_i), which is one proximal problem from w = 0 with η = C·Σω.

    The sample weights ω are 1 unless given, so that η = N·C.
    """

    losses: ClassVar[tuple[str, ...]] = ()  # the names that ``loss`` may have
    if TYPE_CHECKING:
        loss: Any  # a field of each estimator

    C: float = 1.0
    _: KW_ONLY
    tol: float = 1e-4
    max_iter: int = 1000
    fit_intercept: bool = True
    intercept_scaling: float = 1.0
    warm_start: bool = False
    random_state: Any = 0
    verbose: int = 0
    solver: BlockFW | None = None
    process_group: ProcessGroup = None

    def _check_options(self) -> None:
        for name in ("C", "intercept_scaling"):
            value: Any = getattr(self, name)
            if not (isinstance(value, Real) and 0 < float(value) < math.inf):
                raise ValueError(f"{name} is {value!r}; expected a finite number above 0")
        check_options(tol=self.tol, max_iter=self.max_iter)
        if not (self.solver is None or isinstance(self.solver, BlockFW)):
            raise TypeError(
                f"solver is {self.solver!r}; expected a proxsvm.solvers.BlockFW, or None. Its tol, max_passes and seed "
                "are those of the estimator. For another solver build the problem with ProxProblem.from_features"
            )
        if isinstance(self.loss, str) and self.loss not in self.losses:
            raise ValueError(f"loss is {self.loss!r}; expected a loss of proxsvm.losses, or one of {self.losses}")
        if not (self.loss is None or isinstance(self.loss, str | ConvexLoss)):
            raise TypeError(f"loss is a {type(self.loss).__name__}; expected a loss of proxsvm.losses, or its name")
        if isinstance(self.loss, ConvexLoss) and self.loss.reduction != "mean":
            raise ValueError(f"the loss has reduction={self.loss.reduction!r}; expected 'mean', which C then weights")

    def _check_data(self, X: Any, *y: Any, **options: Any) -> Any:
        """X, or X and y, as scikit-learn validates them; without y the features must be those of the fit."""
        checks = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "accept_large_sparse": False, **options}
        if y and is_mapped(X):  # blocks are checked and converted one by one
            checks |= {"dtype": None, "accept_large_sparse": True, "ensure_all_finite": False}
        ranks = ranks_of(self.process_group) if y else None
        if ranks is None:
            return validation.validate_data(self, X, *y, reset=bool(y), **checks)
        if validation._num_samples(X):
            X, target = validation.validate_data(self, X, *y, **checks)
        else:  # an empty shard
            checks = {k: v for k, v in checks.items() if k not in options}
            X, target = validation.validate_data(self, X, ensure_min_samples=0, **checks), np.asarray(*y)
        agree(ranks, self._description(X, target))
        return X, target

    def _description(self, X: Any, y: Any) -> dict[str, Any]:
        """What all ranks must have in common."""
        own = "process_group", "random_state", "verbose"
        options = {k: v for k, v in self.get_params(deep=False).items() if k not in own}
        options |= {k: str(v) for k, v in options.items() if v is None or k in ("loss", "solver")}
        if isinstance(self.loss, ConvexLoss):  # and a checksum of its costs
            options["loss"] += "".join(f", {k} {crc32(x.numpy().tobytes())}" for k, x in self.loss.state_dict().items())
        names = tuple(getattr(self, "feature_names_in_", ())) or None
        columns = {"the number of features": X.shape[1], "the names of the features": names}
        kinds = {"the dtype of X": str(float_type(X)), "the shape of a target": y.shape[1:]}
        return {"the estimator": type(self).__name__, **options, **columns, **kinds}

    def _checked_weight(self, sample_weight: Any, X: Any) -> Array | None:
        """ω as scikit-learn validates it; on ranks a shard may be empty, or have no weight at all."""
        if sample_weight is None:
            return None
        if ranks_of(self.process_group) is not None and not np.any(sample_weight):
            return np.zeros(X.shape[0], float_type(X))
        checks = {"dtype": float_type(X), "ensure_non_negative": True}
        return validation._check_sample_weight(sample_weight, X, **checks)  # type: ignore[no-any-return]

    def _solve(self, loss: ConvexLoss, X: Any, target: Array, out: tuple[int, ...], omega: Array | None) -> Array:
        """The weights, ``[*out, F]``, without the column of the intercept; sets the fitted attributes."""
        ranks, n = ranks_of(self.process_group), len(target)
        target = np.require(target, requirements="W")  # torch warns of other arrays, which pandas has
        omega = None if omega is None else np.require(omega, requirements="W")
        elsewhere = ranks is not None or is_mapped(X)
        shard = self._shard(loss, X, target, out, omega) if elsewhere else None
        masses = [float(n if omega is None else omega.sum())]
        masses = masses if ranks is None else exchange(ranks, masses[0])
        eta = self.C * sum(masses)
        if not 0 < eta < LARGE:
            why = f"C is {self.C!r}, the sum {sum(masses)}" if eta else "every sample_weight is zero"
            expected = f"expected a finite number above 0: {why}; at most {LARGE} fits into float32"
            raise ValueError(f"C times the sum of the sample weights is {eta}; {expected}")
        with one_thread(X.size * math.prod(out) < MANY):
            if shard is None:
                found = self._solve_at_once(loss, X, target, out, omega, eta)
            else:
                solver = self._solver(eta if ranks is None or ranks.rank == 0 else None)
                found = solve_in_rounds(shard, ranks, eta, sum(m > 0 for m in masses), solver)
        if self.warm_start and found.atom is not None:
            self._before = found.atom, target, _fingerprint(loss)
        self.n_iter_ = found.rounds
        self.dual_gap_ = found.gap * eta  # the problem is the SVM's objective over η
        self.objective_ = found.primal * eta
        if not (math.isfinite(self.objective_) and bool(found.weight.isfinite().all())):
            raise ValueError(f"the objective is {self.objective_}: the features or targets are too large; scale them")
        if found.relative > max(self.tol, _rounding(found.weight)):
            warn_of_gap(self, found.relative, stacklevel=5)
        w: Array = found.weight.numpy().astype(float_type(X), copy=False)
        if self.fit_intercept:
            self.intercept_ = self.intercept_scaling * w[..., -1]
            return w[..., :-1]
        self.intercept_ = np.zeros(w.shape[:-1], w.dtype)
        return w

    def _shard(self, loss: ConvexLoss, X: Any, target: Array, out: tuple[int, ...], omega: Array | None) -> Shard:
        """The rows of this rank, which are read block by block where they are on disk."""
        dtype, blocks, mapped = float_type(X), blocks_of(X), is_mapped(X)

        def read(rows: slice) -> Any:
            part = X[rows].astype(dtype, copy=mapped)
            return _with_ones(part, self.intercept_scaling) if self.fit_intercept else part

        for rows in blocks if mapped else ():
            sklearn_utils.assert_all_finite(X[rows], input_name="X")
        weight = torch.as_tensor(np.zeros((*out, X.shape[1] + bool(self.fit_intercept)), dtype))
        omega = np.ones(len(target), dtype) if omega is None else omega
        before = self.warm_start and hasattr(self, "_before")
        start = functools.partial(self._start, target=target) if before else None
        return Shard(loss, read, blocks, target, omega, weight, self.C, (self.solver or BlockFW()).inner, start)

    def _solve_at_once(
        self, loss: ConvexLoss, X: Any, target: Array, out: tuple[int, ...], omega: Array | None, eta: float
    ) -> Found:
        features = _with_ones(X, self.intercept_scaling) if self.fit_intercept else X
        dense, tall = not hasattr(X, "tocoo"), X.shape[0] >= X.shape[1]  # in the dual a wide problem is the smaller one
        in_primal = BinaryCrossEntropy, *(CrossEntropy,) * dense, *SQUARED * (dense and tall)
        size = len(target) * math.prod(out) * features.shape[1]
        tiny = self.solver is None and len(target) <= TINY[0] and size <= TINY[1]
        last_digit = KINKED if isinstance(loss, PiecewiseLinearLoss) else SMOOTH
        tol = last_digit if tiny else self.tol
        if self.solver is None and isinstance(loss, in_primal):
            return self._solve_in_primal(loss, features, target, out, omega, eta, tol)
        for dtype in dict.fromkeys([X.dtype, np.dtype(np.float64)]):  # what float32 cannot certify, float64 may
            rows = features.astype(dtype, copy=not (hasattr(features, "tocoo") or features.flags.writeable))
            problem = ProxProblem.from_features(
                loss,
                rows if hasattr(rows, "tocoo") else torch.as_tensor(rows),
                torch.as_tensor(target),
                lr=eta,
                weight=torch.as_tensor(np.zeros((*out, rows.shape[1]), dtype)),
                sample_weight=None if omega is None else torch.as_tensor(omega),
            )
            solver = self._solver(eta)
            if tiny:
                solver = replace(solver, tol=tol, max_passes=min(self.max_iter, 200))
            point: Any = solver.solve(problem, start=self._start(problem, slice(None), target))
            relative, weight = float(problem.relative(point.gap, point)), point.delta[0].mul(-eta)  # from w = 0
            if relative <= max(self.tol, _rounding(weight)) or point.steps >= self.max_iter:
                break
        gap, primal = max(float(point.gap), 0.0), float(point.dual + point.gap)
        return Found(weight, primal, gap, relative, max(point.steps, 1), point.atom)

    def _solve_in_primal(
        self, loss: ConvexLoss, X: Any, target: Array, out: tuple[int, ...], omega: Array | None, eta: float, tol: float
    ) -> Found:
        """By L-BFGS and Newton's method in the primal."""
        zeros = torch.zeros((), dtype=torch.float64).expand(len(target), *out)
        scores, y = loss.prepare(zeros, torch.as_tensor(target))
        p = loss.coefficients(scores, y, None if omega is None else torch.as_tensor(omega))
        known = loss.lower_bound(scores, y)
        c = eta * (np.full(len(target), p) if isinstance(p, float) else to_numpy(p))
        floor = 0.0 if known is None else float(c @ to_numpy(known)) / eta
        progress = Progress(floor, tol=tol, callback=self._callback(None, eta))
        problem = Primal(X.astype(np.float64, copy=False), loss.hull(scores, y), c, eta, progress)
        start = None
        if self.warm_start and hasattr(self, "coef_"):
            intercept = np.reshape(self.intercept_, (-1, 1)) / self.intercept_scaling
            before = np.hstack([np.atleast_2d(self.coef_), intercept][: 1 + self.fit_intercept]).astype(np.float64)
            start = before if before.shape == problem.shape else None
        problem.minimise(start, self.max_iter)
        weight = torch.as_tensor(problem.weight).reshape(*out, -1)
        primal, gap = problem.P / eta, max(problem.P - problem.D, 0.0) / eta
        return Found(weight, primal, gap, gap / (primal - floor) if gap else 0.0, max(problem.iterations, 1), None)

    def _solver(self, eta: float | None) -> BlockFW:
        """With the estimator's options; reports its progress in units of the objective, unless ``eta`` is None."""
        seed = int(sklearn_utils.check_random_state(self.random_state).randint(2**31))
        solver = self.solver or BlockFW()
        callback = self._callback(solver.callback, eta)
        return replace(solver, tol=self.tol, max_passes=self.max_iter, seed=seed, callback=callback)

    def _callback(self, then: Callback | None, eta: float | None) -> Callback | None:
        """One that prints a line for each pass, and calls ``then``."""
        if not self.verbose or eta is None:
            return then

        def show(trace: Trace) -> None:
            objective, gap = trace.primal * eta, trace.gap * eta
            name = type(self).__name__
            print(f"[{name}] iteration {trace.step}: objective {objective:.6g}, gap {gap:.2e}, {trace.seconds:.2f} s")
            if then is not None:
                then(trace)

        return show

    def _start(self, problem: ProxProblem, rows: slice, target: Array) -> Atom | None:
        """The last fit's dual point, if it is also one of this problem, of some rows of all the targets; another loss
        may have another hull."""
        if not (self.warm_start and hasattr(self, "_before")):
            return None
        atom, of_target, of_loss = self._before
        assert atom is not None
        if not np.array_equal(of_target, target):
            return None
        atom = Atom(atom.s[rows], atom.offset[rows])
        feasible = is_feasible(problem, atom)
        if feasible is None:  # only the same loss has the same hull for certain
            feasible = of_loss is not None and of_loss == _fingerprint(problem.origin.loss)
        return atom if feasible else None

    def _scores(self, X: Any) -> Array:
        validation.check_is_fitted(self)
        X = self._check_data(X)
        scores: Array = np.asarray(X @ np.atleast_2d(self.coef_).T) + self.intercept_
        return scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def warn_of_gap(model: Any, relative: float, stacklevel: int) -> None:
    """Say that a fit stopped at a relative gap above its tol."""
    warnings.warn(
        f"{type(model).__name__} stopped after {model.n_iter_} passes (max_iter={model.max_iter}) at a relative gap of "
        f"{relative:.1e}, above tol={model.tol}: raise max_iter or tol, or scale the features",
        exceptions.ConvergenceWarning,
        stacklevel=stacklevel,
    )


@functools.cache
def _blas() -> Any:
    """The BLAS libraries of NumPy and SciPy; finding them takes 2 ms."""
    return load("threadpoolctl", extra="estimators").ThreadpoolController().select(user_api="blas")


@contextmanager
def one_thread(needed: bool) -> Iterator[None]:
    """Let torch and BLAS use one thread, if ``needed``: several would wait for each other after every small product."""
    before = torch.get_num_threads()  # of this Python thread
    torch.set_num_threads(1 if needed else before)
    try:
        with _blas().limit(limits=1) if needed else nullcontext():
            yield
    finally:
        torch.set_num_threads(before)


def _fingerprint(loss: ConvexLoss) -> bytes | None:
    """What distinguishes a loss and its options from others; None if that is unknown."""
    try:
        return pickle.dumps(loss)
    except Exception:  # a user's loss may contain anything
        return None


def _with_ones(X: Any, scaling: float) -> Any:
    """X with a last column of ``scaling``: its weight, regularised like the others, is the intercept."""
    if hasattr(X, "tocoo"):
        sparse = load("scipy.sparse", extra="estimators")
        return sparse.hstack([X, np.full((X.shape[0], 1), scaling, X.dtype)], format="csr")
    return np.hstack([X, np.full((len(X), 1), scaling, X.dtype)])


def float_type(X: Any) -> Any:
    """The floating-point type of features; only memory-mapped ones may have another."""
    return X.dtype if X.dtype in (np.float32, np.float64) else np.result_type(X.dtype, np.float32)


def _rounding(weight: torch.Tensor) -> float:
    """The relative gap that the dtype of the weights can certify."""
    return 100.0 * float(torch.finfo(weight.dtype).eps)
