"""The averages are those of an independent AveragedModel, and switching to them and back loses no bit."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from benchmarks.calls import Calls
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import MultiStepFW, SingleStepFW
from tests.cases import K, mlp
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer.test_one_path import KINDS
from tests.optimizer.test_optimizer import batches, train

BETA = 0.9
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated.*")


def make(model, **options):
    options = {"lr": 0.7, "momentum": 0.9, "weight_decay": 0.013, "average": BETA, **options}
    solver = options.pop("solver", SingleStepFW())
    return ProxOptimizer(MultiClassHinge(smooth=True), solver, model.parameters(), **options)


def reference(model, longest=BETA):
    """torch's own average, begun at the first weights: β = min(longest, (1 + t)/(10 + t)) after t steps."""

    def mean(average, w, count):
        beta = min(longest, float(count) / (9 + float(count)))  # the first weights are counted, t = count − 1
        return beta * average + (1 - beta) * w if w.is_floating_point() else w

    averaged = AveragedModel(model, avg_fn=mean, use_buffers=True)
    averaged.update_parameters(model)
    return averaged


def tensors(model):
    return [t.detach().clone() for t in model.state_dict().values()]


def assert_same(model, expected, atol=0.0):
    torch.testing.assert_close(tensors(model), expected, atol=atol, rtol=0)


def test_an_average_that_is_no_longer_kept_is_not_shown():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, K))
    optimizer = make(model, follow=model)
    go_on(model, optimizer, 0, 3)
    optimizer.param_groups[0]["average"] = None
    go_on(model, optimizer, 0, 3)
    before = [t.clone() for t in (*model.parameters(), *model.buffers())]
    torch.testing.assert_close([*model.eval().parameters(), *model.buffers()], before, rtol=0, atol=0)
    model.train()
    optimizer.param_groups[0]["average"] = BETA
    go_on(model, optimizer, 0, 1)  # it begins anew, at the weights before this step
    model.eval()
    assert not torch.equal(model[0].weight, before[0])


ordinary = KINDS["ordinary"][0]
STEPS = {
    **KINDS,
    "clipped": (ordinary, {"max_grad_norm": 0.1}),
    "several steps": (KINDS["a closure"][0], {"solver": MultiStepFW(3)}),
    "diagonal": (ordinary, {"metric": Diagonal()}),
    "diagonal, torch's kernels": (ordinary, {"metric": Diagonal(), "fused": False}),
    "no momentum": (ordinary, {"momentum": 0.0, "weight_decay": 0.0}),
}


def trained(steps=5, dtype=torch.float64, **options):
    torch.manual_seed(0)
    model = mlp().to(dtype)
    optimizer = make(model, **options)
    go_on(model, optimizer, 0, steps, dtype)
    return model, optimizer


def go_on(model, optimizer, start, end, dtype=torch.float64):
    train(optimizer, model, [(x.to(dtype), y) for x, y in batches(end, n=12)[start:]])


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_switching_is_in_place_idempotent_lossless_and_never_waits(dtype):
    model, optimizer = trained(dtype=dtype)
    weights, state = tensors(model), copy.deepcopy(optimizer.state_dict())
    memory = [p.data_ptr() for p in model.parameters()]
    expected = [optimizer.state[p]["average"].to(dtype, copy=True) for p in model.parameters()]
    assert not any(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
    for switch, shown in ((optimizer.eval, expected), (optimizer.train, weights)):
        with Calls() as calls:
            switch()
            switch()
        assert not calls.waits
        assert optimizer.averaged == (shown is expected)
        assert_same(model, shown)
    assert memory == [p.data_ptr() for p in model.parameters()]
    torch.testing.assert_close(optimizer.state_dict()["state"], state["state"], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_buffer_more_in_both_modes(dtype, momentum):
    def kept(optimizer):
        return sum(t.nbytes for own in optimizer.state.values() for t in own.values() if t.ndim)

    model, optimizer = trained(dtype=dtype, momentum=momentum)
    _, without = trained(dtype=dtype, momentum=momentum, average=None)
    size = sum(p.numel() for p in model.parameters())
    wide = torch.float32.itemsize  # the average of half precision is float32
    assert kept(optimizer) - kept(without) == wide * size
    optimizer.eval()
    rounded = size * dtype.itemsize if dtype == torch.bfloat16 else 0  # what the parameters cannot hold
    assert kept(optimizer) - kept(without) == wide * size + rounded


def test_no_step_from_averaged_weights():
    model, optimizer = trained()
    x, y = batches(1)[0]
    value = optimizer.loss(model(x), y)
    optimizer.eval()
    before = tensors(model)

    def called():
        raise AssertionError("the closure was called")

    for act in (optimizer.step, lambda: optimizer.step(called), lambda: optimizer.step(loss=1.0)):
        with pytest.raises(RuntimeError, match=r"averaged weights are in place.*optimizer\.train\(\)"):
            act()
    with pytest.raises(RuntimeError, match="averaged weights are in place"):
        optimizer.problem(value)
    assert_same(model, before)
    optimizer.train()
    optimizer.step(lambda: optimizer.loss(model(x), y))


def test_two_optimizers_share_no_state():
    (model, optimizer), (twin, other), (third, alone) = trained(), trained(4), trained()
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    for own, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert not {x.data_ptr() for x in own.values()} & {x.data_ptr() for x in theirs.values()}
    for m, o in ((model, optimizer), (twin, other), (third, alone)):
        go_on(m, o, 5, 8)
    assert_same(model, tensors(third))
    assert_same(twin, tensors(third))


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_of_either_mode_go_on_alike(mode, copied):
    model, optimizer = trained()
    getattr(optimizer, mode)()
    other, twin = copied((model, optimizer))
    for m, o in ((model, optimizer), (other, twin)):
        assert o.averaged == (mode == "eval")
        o.train()
        go_on(m, o, 5, 8)
        o.eval()
    assert_same(other, tensors(model))


@pytest.mark.parametrize(
    ("mode", "change", "message"),
    [
        ("eval", lambda s: s["state"][0].pop("weights"), "torch.distributed.checkpoint"),
        ("eval", lambda s: s["state"][0].pop("average"), "both 'average' and 'weights'"),
        ("train", lambda s: s["state"][0].update(weights=s["state"][0]["average"]), "averaged=False"),
        ("train", lambda s: s["param_groups"][0].update(averaged=True), "averaged=True"),
    ],
)
def test_a_state_that_says_one_thing_and_holds_another_is_refused(mode, change, message):
    model, optimizer = trained()
    getattr(optimizer, mode)()
    before, state = tensors(model), copy.deepcopy(optimizer.state_dict())
    change(state)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    assert_same(model, before)
    assert optimizer.averaged == (mode == "eval")


def test_a_state_from_before_there_were_averages_loads():
    model, optimizer = trained(average=None)
    state = copy.deepcopy(optimizer.state_dict())
    del state["param_groups"][0]["average"], state["param_groups"][0]["averaged"]
    optimizer.load_state_dict(state)
    assert not optimizer.averaged
    go_on(model, optimizer, 5, 6)
