"""Batch-norm statistics that are estimated anew for the averages, while training goes on as if nothing had happened."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from proxsvm import refresh_batch_norm
from tests.cases import K
from tests.optimizer.test_averages import go_on, make
from tests.optimizer.test_follow import Net, both, equal, following, unchanged, values
from tests.optimizer.test_optimizer import batches

INPUTS = [x.double() for x, _ in batches(7, n=12)]


def expected_of(model, inputs):
    """torch's own, with a plain copy of the averages."""
    model.eval()
    plain = Net()
    plain.load_state_dict(copy.deepcopy(model).state_dict())
    update_bn(inputs, plain)
    return values(plain)[6:8]


@pytest.mark.parametrize("mode", ["train", "eval", "eval with training weights"])
@pytest.mark.parametrize("batch", [lambda x: x, lambda x: (x, 0), lambda x: {"x": x}], ids=["x", "(x, y)", "dict"])
def test_the_statistics_of_the_averages_are_torchs_own_and_training_keeps_its_own(mode, batch):
    model, optimizer = following()
    expected = expected_of(model, INPUTS[:4])
    weights, averages = both(model)
    model.train(mode == "train")
    if mode == "eval with training weights":
        optimizer.train()
    model.backbone[2].training = not model.training  # every module's own mode comes back
    modes = [module.training for module in model.modules()]
    refresh_batch_norm(model, map(batch, INPUTS), batches=4)
    assert modes == [module.training for module in model.modules()]
    assert optimizer.averaged == (mode == "eval")
    assert model.backbone[1].momentum == 0.1
    after = both(model)
    assert equal(after[0], weights)
    assert equal(after[1][:6], averages[:6])
    torch.testing.assert_close(after[1][6:8], expected)
    assert not torch.equal(after[1][6], averages[6])
    assert torch.equal(after[1][8], averages[8])  # how many batches were seen
    go_on(model, optimizer, 5, 7)


def test_models_inside_of_others_and_those_that_follow_nobody():
    model, _ = following()
    expected = expected_of(model, INPUTS)
    refresh_batch_norm(nn.Sequential(nn.Identity(), model.train()), INPUTS)
    weights, averages = both(model)
    torch.testing.assert_close(averages[6], expected[0])
    assert not torch.equal(weights[6], averages[6])
    alone = Net()
    optimizer = make(alone)
    go_on(alone, optimizer, 0, 5)
    weights = values(alone)
    optimizer.eval()
    expected = expected_of(copy.deepcopy(alone), INPUTS)
    refresh_batch_norm(alone, INPUTS)
    assert alone.training
    optimizer.train()
    assert equal(values(alone)[:6], weights[:6])
    torch.testing.assert_close(values(alone)[6], expected[0])


@pytest.mark.parametrize(
    ("loader", "batches", "error", "message"),
    [
        ([], None, ValueError, "the loader yielded no batch"),
        (INPUTS, 0, ValueError, "batches is 0; expected None, for all, or 1 or more"),
        ([INPUTS[0], torch.zeros(2, 3, dtype=torch.float64)], None, RuntimeError, "shapes cannot be multiplied"),
    ],
)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_what_goes_wrong_changes_nothing(loader, batches, error, message, mode):
    model, optimizer = following()
    before = both(model)
    getattr(model, mode)()
    with pytest.raises(error, match=message):
        refresh_batch_norm(model, loader, batches)
    assert model.training == (mode == "train")
    assert optimizer.averaged == (mode == "eval")
    assert unchanged(model, before)


def test_a_model_without_statistics_needs_no_batch():
    for model in (nn.Linear(5, K), nn.BatchNorm1d(5, track_running_stats=False)):
        before = copy.deepcopy(model.state_dict())
        refresh_batch_norm(model, [])
        assert equal(list(model.state_dict().values()), list(before.values()))
