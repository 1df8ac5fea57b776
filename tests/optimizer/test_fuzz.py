"""Any order of calls either works or raises a documented error, and never corrupts the weights."""

import copy
import warnings

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor, nn

from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal, Kronecker, Metric
from proxsvm.solvers import MultiStepFW, SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer

BAD = st.sampled_from([float("nan"), float("inf"), -float("inf")])
STALE = (
    "modified by an inplace operation",
    "invalid gradient",
    "must have the same dtype",
    "backward through the graph",
)
LAYOUTS = {
    "other memory": lambda x: x.clone(),
    "transposed": lambda x: x.t().contiguous().t() if x.dim() == 2 else x.flip(0),
    "with gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "inside a larger buffer": lambda x: torch.cat([x.reshape(-1), x.new_zeros(9)])[: x.numel()].view(x.shape),
}


def documented(error: Exception, *texts: str) -> None:
    assert any(text in str(error) for text in texts), error


class Training(RuleBasedStateMachine):
    """A model of two layers, the second of which may join the optimizer later, and whose width may change."""

    @initialize(
        fused=st.sampled_from([None, False]),
        metric=st.sampled_from([None, Diagonal(), Kronecker(every=2)]),
        average=st.sampled_from([None, 0.9]),
        past=st.sampled_from([{"momentum": 0.5}, {"memory": 0.9}, {}]),
    )
    def begin(self, fused: bool | None, metric: Metric | None, average: float | None, past: dict[str, float]) -> None:
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(3, 4).double(), nn.Linear(4, 3).double()
        self.model = nn.Sequential(self.body, nn.ReLU(), self.head)
        self.criterion = MultiClassHinge(smooth=True)
        options = {"lr": 0.5, "weight_decay": 0.01, "fused": fused, "metric": metric, "average": average, **past}
        self.optimizer = ProxOptimizer(self.criterion, SingleStepFW(), self.body.parameters(), **options)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.optimizer._opt_called = True  # torch warns where a scheduler steps first; any order is meant here
        self.values: list[Tensor] = []
        self.saved = copy.deepcopy(self.optimizer.state_dict())
        self.differentiated = 0
        self.changed = False  # whether a parameter has another shape or dtype than what is kept for it

    def snapshot(self) -> list[Tensor]:
        kept = (x for own in self.optimizer.state.values() for x in own.values() if isinstance(x, Tensor))
        return [x.detach().clone() for x in (*self.model.parameters(), *kept)]

    def assert_unchanged(self, before: list[Tensor]) -> None:
        """What is kept may follow a parameter into another precision, though, and is made where it is missing."""
        count = len(list(self.model.parameters())) if self.changed else len(before)
        assert all(torch.equal(a, b) for a, b in zip(before[:count], self.snapshot(), strict=False))

    def batch(self, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        return x.to(self.body.weight.dtype), torch.randint(3, (4,), generator=generator)

    def value(self, seed: int) -> Tensor:
        x, y = self.batch(seed)
        return self.criterion(self.model(x), y)

    # Attacks.

    @rule(layout=st.sampled_from(list(LAYOUTS)), head=st.booleans())
    def swap_memory(self, layout: str, head: bool) -> None:
        weight = (self.head if head else self.body).weight
        weight.data = LAYOUTS[layout](weight.data)

    @rule(width=st.sampled_from([2, 4, 7]))
    def grow_or_prune(self, width: int) -> None:
        dtype = self.body.weight.dtype
        self.body.weight.data = torch.ones(width, 3, dtype=dtype)
        self.body.bias.data, self.head.weight.data = torch.ones(width, dtype=dtype), torch.ones(3, width, dtype=dtype)
        self.model.zero_grad()
        self.zero_grad(True)
        self.values, self.changed = [], True

    @rule(dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    def convert(self, dtype: torch.dtype) -> None:
        self.model.to(dtype)
        self.values, self.changed = [], True

    @rule(edit=st.sampled_from(["scale", "replace", "drop"]))
    def edit_gradient(self, edit: str) -> None:
        if (g := self.body.weight.grad) is not None:
            self.body.weight.grad = {"scale": g.mul_(0.5), "replace": g * 2, "drop": None}[edit]

    # Training.

    @rule(to_none=st.booleans())
    def zero_grad(self, to_none: bool) -> None:
        self.optimizer.zero_grad(to_none)
        if len(self.optimizer.param_groups) == 1:
            self.head.zero_grad()  # else it would bring old gradients along when it joins
        self.differentiated = 0

    @rule(seed=st.integers(0, 9), with_grad=st.booleans())
    def forward(self, seed: int, with_grad: bool) -> None:
        with torch.set_grad_enabled(with_grad):
            self.values += [self.value(seed)] if with_grad else []

    @precondition(lambda self: self.values)
    @rule(factor=st.sampled_from([1.0, 0.5, 3.0]) | BAD, recorded=st.booleans())
    def backward(self, factor: float, recorded: bool) -> None:
        """By autograd, or by the optimizer, which records whatever it differentiates."""
        value = self.values.pop() * factor
        try:
            self.optimizer.backward((value**2 + 1).sqrt()) if recorded else value.backward()
        except RuntimeError as error:  # the weights have moved or changed since this forward pass
            documented(error, *STALE)
        else:
            self.differentiated += 1

    @rule(loss=st.none() | st.floats(0, 10))
    def step(self, loss: float | None) -> None:
        before = self.snapshot()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of edited gradients, and of those that no value is known for
                self.optimizer.step(loss=loss)
        except RuntimeError as error:
            documented(error, *[""] if self.changed else ["has no loss value"])
            assert self.changed or not self.differentiated
            self.assert_unchanged(before)

    @rule(seed=st.integers(0, 9), several=st.booleans(), bad=st.none() | BAD)
    def step_with_a_closure(self, seed: int, several: bool, bad: float | None) -> None:
        x, y = self.batch(seed)
        x = x if bad is None else x * bad
        skipped, before = int(self.optimizer.skipped), self.snapshot()
        self.optimizer.solver = MultiStepFW(3) if several else SingleStepFW()
        try:
            value = self.optimizer.step(lambda: self.criterion(self.model(x), y))
        except RuntimeError:
            assert self.changed
            self.assert_unchanged(before)
            return
        finally:
            self.optimizer.solver = SingleStepFW()
        assert value.isfinite() == (bad is None)
        if bad is not None:
            assert self.optimizer.skipped == skipped + 1
            self.assert_unchanged(before)

    @precondition(lambda self: len(self.optimizer.param_groups) == 1)
    @rule(lr=st.sampled_from([0.1, -1.0]))
    def add_param_group(self, lr: float) -> None:
        try:
            self.optimizer.add_param_group({"params": self.head.parameters(), "lr": lr, "initial_lr": lr})
        except ValueError as error:
            documented(error, "expected η ≥ 0")
            assert len(self.optimizer.param_groups) == 1
        else:
            self.scheduler.base_lrs.append(lr)

    @rule()
    def save(self) -> None:
        self.saved = copy.deepcopy(self.optimizer.state_dict())

    @rule()
    def load(self) -> None:
        before, groups = self.snapshot(), len(self.optimizer.param_groups)
        try:
            self.optimizer.load_state_dict(copy.deepcopy(self.saved))
        except ValueError as error:
            documented(error, "parameter groups", "was saved with another model or in another precision")
            assert self.changed or len(self.saved["param_groups"]) != groups
            self.assert_unchanged(before)
        weights = list(self.model.parameters())
        assert all(torch.equal(a, b) for a, b in zip(before, weights, strict=False))

    @rule()
    def schedule(self) -> None:
        self.scheduler.step()

    @invariant()
    def the_weights_are_finite_and_the_report_is_sound(self) -> None:
        if not hasattr(self, "optimizer"):
            return
        assert all(x.isfinite().all() for x in self.snapshot())
        last = self.optimizer.last
        assert last is None or last.dual.isnan() or not last.loss.isfinite() or 0 <= last.gamma <= 1


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
