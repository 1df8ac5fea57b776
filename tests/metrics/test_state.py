"""What a metric keeps between steps: resumed, skipped, shared, in half precision, under clipping."""

import copy
import io
import math

import pytest
import torch
from torch import nn

from proxsvm.losses import CrossEntropy, L1Regression, MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean, Kronecker
from proxsvm.solvers import CorrectiveFW, MultiStepFW, SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.cases import differentiate, mlp, twins
from tests.metrics.test_metrics import KINDS, train, two_groups
from tests.optimizer.test_faults import same
from tests.optimizer.test_optimizer import batches
from tests.optimizer.test_optimizer import train as train_on


@pytest.mark.parametrize("lr", [0.01, "auto"])
@pytest.mark.parametrize("kind", [*KINDS, {"metric": Kronecker(every=3), "momentum": 0.0, "memory": 0.9}], ids=str)
@pytest.mark.parametrize("way", ["state_dict", "deepcopy", "file"])
def test_training_continues_bit_for_bit(lr, kind, way):
    def fresh():
        torch.manual_seed(0)
        model = mlp()
        options = {"momentum": 0.9, "weight_decay": 0.01, "metric": Diagonal(), "average": 0.9, **kind}
        return model, ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), lr, **options)

    model, optimizer = fresh()
    train(model, optimizer)
    straight = train(model, optimizer)
    model, optimizer = fresh()
    train(model, optimizer)
    if way == "deepcopy":
        model, optimizer = copy.deepcopy((model, optimizer))
    else:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if way == "file":
            torch.save(saved, file := io.BytesIO())
            file.seek(0)
            saved = torch.load(file, weights_only=True)
        saved = copy.deepcopy(saved)
        model, optimizer = fresh()
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    assert torch.equal(train(model, optimizer), straight)


def test_what_belongs_to_all_groups_is_loaded_and_moves_with_the_parameters():
    """torch does not move tensors in ``param_groups``: on an accelerator every step would wait for them."""
    w = nn.Parameter(torch.ones(3))
    optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), [w], lr="auto", memory=0.9)
    for loss in (1.0, math.inf, 2.0):
        w.grad = torch.ones(3)
        optimizer.step(loss=loss)
    saved = copy.deepcopy(optimizer.state_dict())
    for device in ("cpu", "meta"):
        params = [nn.Parameter(w.detach().to(device))]
        resumed = ProxOptimizer(L1Regression(), SingleStepFW(), params, lr="auto", memory=0.9)
        resumed.load_state_dict(saved)
        found = {name: x for name, x in resumed.param_groups[0].items() if isinstance(x, torch.Tensor)}
        assert set(found) == {"skipped", "h", "max_distance", "squares"}
        assert all(x.device.type == device for x in found.values())
        if device == "cpu":
            assert resumed.skipped == 1
            assert all(torch.equal(x, optimizer.param_groups[0][name]) for name, x in found.items())


@pytest.mark.parametrize("lr", [0.01, "auto"])
@pytest.mark.parametrize("kind", [*KINDS, {"metric": Kronecker(every=3), "momentum": 0.0, "memory": 0.9}], ids=str)
@pytest.mark.filterwarnings("ignore:a gradient was changed:UserWarning")
def test_a_skipped_step_changes_no_bit(lr, kind):
    model = mlp()
    options = {"momentum": 0.9, "weight_decay": 0.01, "metric": Diagonal(), "average": 0.9, **kind}
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), lr, **options)
    train(model, optimizer)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    differentiate(optimizer, model, *batches(1)[0])
    model[0].weight.grad[0, 0] = math.nan
    optimizer.step()
    assert int(optimizer.skipped) == 1
    before[1]["param_groups"][0]["skipped"] += 1
    assert same(before, (model.state_dict(), optimizer.state_dict()))


def test_half_precision_parameters_keep_their_moments_in_float32():
    model = mlp().bfloat16()
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), 0.01, metric=Diagonal(), average=0.9)
    train_on(optimizer, model, [(x.bfloat16(), y) for x, y in batches(3)])
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    for state in (optimizer.state[model[0].weight], saved["state"][0]):
        assert state["v"].dtype == state["average"].dtype == torch.float32
    assert torch.equal(optimizer.state[model[0].weight]["v"], saved["state"][0]["v"])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_parameter_that_joins_late_or_has_no_gradient_for_some_steps_has_a_count_of_its_own(kind):
    p, q, a, b = (nn.Parameter(torch.ones(3, dtype=torch.double)) for _ in range(4))
    plain = nn.Parameter(torch.ones(3, dtype=torch.double))
    groups = [{"params": [plain], "metric": Euclidean()}, {"params": [p, q]}]
    optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), groups, 1e-3, metric=Diagonal(0.9), **kind)
    adam = torch.optim.Adam([a, b], 1e-3, betas=(0.0, 0.9))
    x = torch.arange(1.0, 4.0, dtype=torch.double)
    for step in range(8):
        both = step in (2, 4, 6, 7)
        optimizer.zero_grad(), adam.zero_grad()
        optimizer.loss(((p + q + plain if both else p + plain) @ x)[None], -100 * x[:1]).backward()
        ((a + b if both else a) @ x).backward()
        optimizer.step(), adam.step()
        assert optimizer.last.gamma == 1
    assert [float(optimizer.state[w]["t"]) for w in (p, q)] == [8, 4]
    torch.testing.assert_close([p, q], [a, b], atol=1e-12, rtol=0)


def test_a_count_that_was_loaded_is_not_shared_with_another_group():
    model, twin = mlp(), mlp()
    options = {"lr": 0.01, "metric": Diagonal(), "average": 0.9}
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), two_groups(model), **options)
    train(model, optimizer, 2)
    twin.load_state_dict(model.state_dict())
    other = ProxOptimizer(CrossEntropy(), SingleStepFW(), two_groups(twin), **options)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, m in ((optimizer, model), (other, twin)):
        each.param_groups[1]["lr"] = 0.0
        train(m, each, 5)
        each.param_groups[1]["lr"] = 0.01
    assert torch.equal(train(model, optimizer, 2), train(twin, other, 2))
    assert float(other.state[twin[2].weight]["t"]) == 4


@pytest.mark.parametrize("solver", [MultiStepFW(3), CorrectiveFW(3)])
def test_solvers_of_several_steps_learn_the_same_moments(solver):
    (model, twin), (x, y), kept = twins(), batches(1, n=12)[0], []
    for s, m in ((solver, model), (SingleStepFW(), twin)):
        optimizer = ProxOptimizer(MultiClassHinge(), s, m.parameters(), 0.01, metric=Diagonal())
        optimizer.step(lambda: optimizer.loss(m(x), y))
        kept.append([optimizer.state[p] for p in m.parameters()])
    torch.testing.assert_close(*kept, atol=1e-14, rtol=0)
    assert all(float(own["t"]) == 1 for own in kept[0])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_closure_is_clipped_as_a_backward_pass_is(kind):
    (model, twin), options = twins(), {"lr": 0.2, "metric": Diagonal(), "max_grad_norm": 0.3, **kind}
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), model.parameters(), **options)
    train(model, optimizer)
    other = ProxOptimizer(MultiClassHinge(), SingleStepFW(), twin.parameters(), **options)
    for x, y in batches(10, n=12):
        other.step(lambda x=x, y=y: other.loss(twin(x), y))
    torch.testing.assert_close(list(twin.parameters()), list(model.parameters()), rtol=0, atol=1e-12)
    assert other.last.gamma == pytest.approx(float(optimizer.last.gamma), abs=1e-12)


def test_clipped_gradients_make_the_moments():
    found = []
    for bound, scale in ((0.5, 1.0), (None, 0.5)):
        w = nn.Parameter(torch.tensor([3.0, 4.0]))
        optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), [w], 0.1, metric=Diagonal(), max_grad_norm=bound)
        w.grad = torch.tensor([0.6, 0.8]) * scale
        optimizer.step(loss=1.0)
        found.append(optimizer.state[w]["v"])
    torch.testing.assert_close(*found, atol=1e-15, rtol=0)
