"""lr="auto": schedulers, training, and the history that it keeps."""

import copy

import pytest
import torch

from proxsvm.losses import CrossEntropy
from proxsvm.solvers import SingleStepFW
from tests.cases import METRICS, mlp, vector
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.metrics.test_metrics import train, two_groups
from tests.optimizer.test_optimizer import begun


def test_schedulers_multiply_the_automatic_eta():
    model, optimizer, _ = begun(loss=CrossEntropy(), lr="auto")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, optimizer, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    optimizer.param_groups[0]["lr"] = 0.0
    before = vector(model)
    assert torch.equal(train(model, optimizer, 1), before)


@pytest.mark.parametrize("metric", METRICS, ids=repr)
def test_the_automatic_eta_keeps_its_history_when_the_first_group_thaws(metric):
    found = []
    for order in (1, -1):
        torch.manual_seed(0)
        model = mlp()
        groups, options = two_groups(model)[::order], {"metric": metric, "fused": False}
        optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), groups, "auto", **options)
        model[0].requires_grad_(False)
        train(model, optimizer, 20)
        model[0].requires_grad_(True)
        found.append(train(model, optimizer, 5))
    torch.testing.assert_close(*found, atol=1e-10, rtol=0)


def test_the_history_of_version_0_2_is_found_in_whatever_group_it_is():
    model = mlp()
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), two_groups(model), "auto")
    train(model, optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    first, second = saved["param_groups"]
    second["far"], second["squares"] = first.pop("max_distance"), first.pop("squares")
    first["far"], first["squares"] = torch.tensor(-1.0), torch.tensor(0.0)
    del first["skipped"], first["h"]
    expected = copy.deepcopy(model), train(model, optimizer, 1)
    other = ProxOptimizer(CrossEntropy(), SingleStepFW(), two_groups(expected[0]), "auto")
    other.load_state_dict(saved)
    assert torch.equal(train(expected[0], other, 1), expected[1])


def test_the_report_has_eta_and_the_step_size():
    model, optimizer, _ = begun(loss=CrossEntropy(), lr="auto")
    train(model, optimizer, 3)
    shared, last = optimizer.param_groups[0], optimizer.last
    torch.testing.assert_close(last.eta, shared["max_distance"] / shared["squares"].sqrt(), atol=0, rtol=1e-12)
    assert last.step_size == last.gamma * last.eta
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), 0.25)
    train(model, optimizer, 1)
    assert optimizer.last.eta == 0.25
