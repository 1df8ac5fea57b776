"""The exact QP against scikit-learn's SVMs, against itself, and verify() against all solvers."""

import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_wine
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVC, LinearSVR

from proxsvm import ProxProblem
from proxsvm._extras import load
from proxsvm.losses import CrossEntropy, L1Regression, MultiClassHinge
from proxsvm.solvers import DualSolver, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.verification import verify
from tests.cases import LOSSES, MODELS, OracleOnly, each_loss, setting


def svm_problem(loss, X, y, C, outputs):
    """One proximal problem from w = 0 with η = N·C is the SVM: (1/N)·(½‖w‖²/C + Σ ℓ) = objective / (N·C)."""
    X = torch.as_tensor(X, dtype=torch.float64)
    w = torch.zeros(outputs, X.shape[1], requires_grad=True)
    scores = X @ w.T if outputs > 1 else (X @ w.T).squeeze(1)
    return ProxProblem.from_scores(loss, scores, torch.as_tensor(y), [w], lr=len(X) * C)


@pytest.mark.parametrize("epsilon", [None, 0.0, 0.3], ids=["classes", "line", "band"])
@pytest.mark.parametrize("C", [0.01, 0.1])
def test_it_reaches_the_objective_of_scikit_learns_svms(epsilon, C):
    X, y = (load_wine if epsilon is None else load_diabetes)(return_X_y=True)
    X, options = scale(X)[::5], {"fit_intercept": False, "C": C, "tol": 1e-8, "max_iter": 1_000_000}
    if epsilon is None:
        y, loss = y[::5], MultiClassHinge()
        w = LinearSVC(multi_class="crammer_singer", **options).fit(X, y).coef_
        each = (X @ w.T + (y[:, None] != np.arange(3))).max(1) - (X @ w.T)[np.arange(len(y)), y]
    else:
        y, loss = scale(y)[::5], L1Regression(epsilon)
        w = LinearSVR(epsilon=epsilon, **options).fit(X, y).coef_
        each = np.maximum(np.abs(X @ w - y) - epsilon, 0)
    problem = svm_problem(loss, X, y, C, 3 if epsilon is None else 1)
    exact = ExactQP().solve(problem)
    assert float(problem.primal(exact)) * len(X) * C == pytest.approx((w**2).sum() / 2 + C * each.sum(), rel=1e-4)
    assert problem.gap(exact) <= 1e-6 * problem.primal(exact)


def test_what_it_says_about_its_accuracy_is_the_gap():
    """cvxpy warns about any solution that misses Clarabel's own tolerances; here the point has its certified gap."""
    torch.manual_seed(0)
    problem = svm_problem(CrossEntropy(), torch.randn(5, 3), torch.arange(5) % 4, 0.5, 4)
    beyond_rounding = {"tol_gap_abs": 1e-30, "tol_gap_rel": 1e-30, "tol_feas": 1e-30}
    assert ExactQP(options=beyond_rounding).solve(problem).gap <= 1e-12


@pytest.mark.parametrize("loss", [MultiClassHinge(), L1Regression(), CrossEntropy()], ids=repr)
def test_a_gap_above_tol_is_said_aloud(loss):
    """Issue 28.6: with a hull, tol was ignored."""
    torch.manual_seed(0)
    y = torch.randn(9, 3) if isinstance(loss, L1Regression) else torch.arange(9) % 3
    problem = svm_problem(loss, torch.randn(9, 3), y, 0.5, 3)
    loose = {"tol_gap_abs": 1e-2, "tol_gap_rel": 1e-2, "tol_feas": 1e-2}
    with pytest.warns(RuntimeWarning, match=r"CLARABEL left a relative gap of .*above tol=1e-07"):
        point = ExactQP(options=loose).solve(problem)
    assert problem.relative_gap(point) > 1e-7
    assert ExactQP(tol=0.5, options=loose).solve(problem).gap > 0
    assert problem.relative_gap(ExactQP().solve(problem)) <= 1e-7


@each_loss
def test_the_hull_is_that_of_the_oracles_atoms(loss):
    """From the loss's own hull, and from the atoms that its oracle finds: one value."""
    values = []
    for hide in (False, True):
        case = setting(loss, MODELS[1], n=3)
        if hide:
            case.loss = OracleOnly(case.loss)
        problem = case.problem(1.0, 0.05)
        values.append(float(problem.dual(ExactQP().solve(problem))))
    assert values[1] == pytest.approx(values[0], abs=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_verify_certifies_every_kind_of_network(model):
    problem = setting(LOSSES[1], model, n=3).problem(1.0, 0.01)
    report = verify(problem, MultiStepFW(10))
    assert report.ok
    assert report.dual <= report.exact + 1e-6 <= report.primal + 2e-6
    assert report.gap == pytest.approx(report.primal - report.dual, abs=1e-9)
    assert verify(problem, ExactQP()).optimal


def test_the_report_prints_as_a_table():
    problem = setting(LOSSES[0], MODELS[1]).problem(50.0)
    report = verify(problem, SingleStepFW())
    text = str(report)
    assert text.splitlines()[0] == "SingleStepFW()"
    for word in ("primal", "exact", "dual", "gap", "‖d − d*‖", "verdict", "feasible"):
        assert word in text
    assert not report.optimal


def test_verify_sees_a_cheat():
    class Cheat(DualSolver):
        """Claims a lam that no atom has."""

        def solve(self, problem):
            point = SingleStepFW().solve(problem)
            return type(point)(point.delta, point.lam + 10, point.gamma, 1)

    report = verify(setting(LOSSES[0], MODELS[1]).problem(1.0), Cheat())
    assert not report.ok
    assert "VIOLATED" in str(report)


def test_rounding_in_float32_does_not_keep_the_oracle_busy():
    """With every vertex listed the first solution is the answer, though its gap in float32 is not 1e-7 of a tiny P."""
    case = setting(LOSSES[11], MODELS[0])
    case.model.float()
    case.x = case.x.float()
    problem = case.problem(1000.0)
    point = ExactQP(max_rounds=3).solve(problem)
    assert problem.gap(point) <= 1e-5


def test_too_large_is_refused_and_the_displacement_of_the_start_carries_no_graph():
    problem = setting(LOSSES[0], MODELS[1]).problem(1.0, 0.1)
    assert not any(d.requires_grad for d in problem.displacement(problem.start()))
    with pytest.raises(ValueError, match="verify on fewer samples"):
        ExactQP(max_entries=100).solve(problem)


def test_an_oracle_that_is_asked_too_often_is_named():
    case = setting(LOSSES[-1], MODELS[1])
    with pytest.raises(RuntimeError, match="Give BinaryHinge a hull"):
        ExactQP(max_rounds=1).solve(case.problem(10.0))


def test_another_qp_solver():
    problem = setting(LOSSES[0], MODELS[0]).problem(1.0)
    options = {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iter": 100_000}
    osqp = ExactQP(solver="OSQP", options=options).solve(problem)
    assert problem.dual(osqp) == pytest.approx(float(problem.dual(ExactQP().solve(problem))), abs=1e-5)


def test_a_missing_extra_is_named():
    with pytest.raises(
        ModuleNotFoundError, match=r"needs 'no_such_package'.*pip install '\.\[qp\]' in proxsvm's source"
    ):
        load("no_such_package", extra="qp")


@pytest.mark.parametrize("terminal", [True, False])
def test_verify_says_what_it_solves_and_how_far_it_is_on_a_terminal_only(terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    problem, solver, heard = setting(LOSSES[0], MODELS[1]).problem(1.0), MultiStepFW(3, tol=0.0), []
    assert verify(problem, solver).solver == repr(solver)
    said = capsys.readouterr().err
    assert ("ExactQP: 20 score entries × 64 parameters …" in said) is terminal
    assert (said.split("\r")[-2:] == [" " * 100, ""]) is terminal  # the line is erased
    assert [f"parameters, step {step}, gap" in said for step in range(4)] == [*[terminal] * 3, False]
    verify(problem, MultiStepFW(3, tol=0.0, callback=heard.append))  # a callback of one's own is kept
    assert len(heard) == 3
    assert "step" not in capsys.readouterr().err
