"""The compiled loops: a whole life of training gives the numbers of torch's kernels, whatever happens."""

import copy
import sys

import pytest
import torch
from torch import nn

from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW
from tests.cases import K
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer.test_optimizer import batches

# Gradients are poisoned by hand here, which the optimizer notices.
pytestmark = pytest.mark.filterwarnings("ignore:a gradient was changed:UserWarning")


class Life:
    """A model and its optimizer, to which things happen."""

    def __init__(self, fused, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 600), nn.ReLU(), nn.Linear(600, K))
        self.criterion = MultiClassHinge(smooth=True)
        options = {"lr": 0.5, "momentum": 0.9, "weight_decay": 1e-2, "fused": fused, **options}
        self.optimizer = ProxOptimizer(self.criterion, SingleStepFW(), self.model[:3].parameters(), **options)
        self.rest = self.model[4]

    def train(self, steps=3, *, poison=None, set_to_none=True, micro=1):
        for t, (x, y) in enumerate(batches(steps)):
            self.optimizer.zero_grad(set_to_none)
            for a, b in zip(x.chunk(micro), y.chunk(micro), strict=True):
                (self.criterion(self.model(a.to(self.dtype)), b) / micro).backward()
            if poison is not None and t == 1:
                self.model[2].weight.grad[0, 0] = poison
            self.optimizer.step()

    def by_closure(self):
        for x, y in batches(3):
            self.optimizer.step(lambda x=x, y=y: self.criterion(self.model(x), y))

    @property
    def dtype(self):
        return self.model[0].weight.dtype

    @property
    def weights(self):
        return torch.cat([p.detach().reshape(-1).double() for p in self.model.parameters()])


def freeze_one(life):
    life.model[0].bias.requires_grad_(False)
    life.train()
    life.model[0].bias.requires_grad_(True)


def give_other_memory(life):
    for p in life.model.parameters():
        p.data = p.data.clone() * 0.5


def go_to_single_precision(life):
    state = copy.deepcopy(life.optimizer.state_dict())
    life.model.float()
    for own in state["state"].values():
        own.update({name: x.float() for name, x in own.items()})
    life.optimizer.load_state_dict(state)


def come_back_from_a_copy(life):
    life.model, life.optimizer, life.criterion = copy.deepcopy((life.model, life.optimizer, life.criterion))
    assert life.optimizer.loss is life.criterion


def turn_the_strides(life):
    weight = life.model[2].weight
    weight.data = weight.data.t().contiguous().t()


EVENTS = {  # between two times of training, or instead of them
    "nothing": lambda life: None,
    "nan": lambda life: life.train(4, poison=float("nan")),
    "infinity": lambda life: life.train(4, poison=float("inf")),
    "gradients kept and zeroed": lambda life: life.train(4, set_to_none=False),
    "micro-batches": lambda life: life.train(4, micro=3),
    "a closure": Life.by_closure,
    "freeze one": freeze_one,
    "another group": lambda life: life.optimizer.add_param_group({"params": life.rest.parameters(), "lr": 0.1}),
    "other memory": give_other_memory,
    "single precision": go_to_single_precision,
    "a copy": come_back_from_a_copy,
    "other strides": turn_the_strides,
}


OPTIONS = [
    {},
    {"momentum": 0.0, "max_grad_norm": 0.3},
    {"metric": Diagonal(), "lr": 0.01, "average": 0.9},
    {"momentum": 0.0, "memory": 0.9, "metric": Diagonal(), "lr": "auto", "average": 0.9},
    {"momentum": 0.0, "memory": 0.8, "max_grad_norm": 0.3},
]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_whatever_happens_the_numbers_are_those_of_torchs_kernels(event, options, fused):
    if fused and event == "other strides":
        pytest.skip("the state keeps its memory order: only fused=None goes on, by torch's operations")
    lives = [Life(False, **options), Life(fused, **options)]
    for life in lives:
        life.train()
        EVENTS[event](life)
        life.train()
    tolerance = 1e-5 if event == "single precision" else 1e-10
    torch.testing.assert_close(lives[1].weights, lives[0].weights, atol=tolerance, rtol=0)
    assert int(lives[0].optimizer.skipped) == int(lives[1].optimizer.skipped) == (event in ("nan", "infinity"))
    assert lives[1].weights.isfinite().all()


@pytest.mark.parametrize("before", [False, True])
def test_a_checkpoint_goes_from_one_to_the_other(before):
    first, second = Life(before), Life(not before)
    first.train(6)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    for life in (first, second):
        life.train(6)
    torch.testing.assert_close(second.weights, first.weights, atol=1e-10, rtol=0)
    assert second.optimizer.fused is not before


def test_without_numba_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    Life(False).train()
    with pytest.raises(ModuleNotFoundError, match=r"needs 'numba'.*\[fast\]"):
        Life(True)
