"""Swapped memory, edited gradients, moved dtypes, changed groups: the right numbers, or a documented error."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor, nn

from proxsvm import ProxOptimizer
from proxsvm.losses import L1Regression
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW
from tests.optimizer import twin

EPS = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 3e-2}
DTYPES = st.sampled_from(list(EPS))
DOCUMENTED = (
    "the gradient of parameter",
    "the velocity of parameter",
    "the second moment of parameter",
    "the average of parameter",
    "fused=True, but",
)


def numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def documented(as_expected: bool) -> None:
    """An error is allowed, but only this one."""
    assert as_expected


LAYOUTS = {
    "other memory": lambda x: x.clone(),
    "transposed": lambda x: x.t().contiguous().t() if x.dim() == 2 else x.flip(0),
    "with gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "inside a larger buffer": lambda x: torch.cat([x.reshape(-1), x.new_zeros(9)])[: x.numel()].view(x.shape),
}
SHAPES = {"larger": (7, 5), "smaller": (2, 5), "turned": (5, 4), "as it was": (4, 5)}
EDITS = ["scale", "zero", "replace", "other order", "negative view", "drop"]


class Attacks(RuleBasedStateMachine):
    """Two parameters, of which the second may join later. The score is the sum of ⟨p, a⟩: any shape will do."""

    @initialize(
        fused=st.sampled_from([None, False, True]),
        diagonal=st.booleans(),
        average=st.sampled_from([None, 0.9]),
        dtype=DTYPES,
        both=st.booleans(),
    )
    def begin(self, fused: bool | None, diagonal: bool, average: float | None, dtype: torch.dtype, both: bool) -> None:
        if fused and dtype == torch.bfloat16:
            dtype = torch.float32
        self.params = [nn.Parameter(numbers((4, 5), 0).to(dtype)), nn.Parameter(numbers((4,), 1).to(dtype))]
        self.criterion = L1Regression()
        self.optimizer = ProxOptimizer(
            self.criterion,
            SingleStepFW(),
            self.params[:1],
            lr=0.5,
            momentum=0.9,
            weight_decay=0.01,
            fused=fused,
            metric=Diagonal() if diagonal else None,
            average=average,
        )
        if both:
            self.optimizer.add_param_group({"params": [self.params[1]]})
        self.value: float | None = None  # of the gradients that are there
        self.spent = False  # whether a step has been taken for them
        self.dirty = False  # whether they were edited since
        self.unaccounted = False  # whether the record was told

    @property
    def present(self) -> list[Tensor]:
        return [p for p in self.params if p.grad is not None]

    # Attacks.

    @rule(i=st.integers(0, 1), layout=st.sampled_from(list(LAYOUTS)))
    def swap_memory(self, i: int, layout: str) -> None:
        self.params[i].data = LAYOUTS[layout](self.params[i].data)

    @rule(i=st.integers(0, 1), shape=st.sampled_from(list(SHAPES)), keep=st.booleans())
    def swap_shape(self, i: int, shape: str, keep: bool) -> None:
        p = self.params[i]
        p.data = numbers(SHAPES[shape][: 2 - i], 2).to(p.dtype)
        if not keep and p.grad is not None:
            p.grad = None
            self.dirty = True

    @rule(dtype=DTYPES, gradients=st.booleans())
    def move(self, dtype: torch.dtype, gradients: bool) -> None:
        """As nn.Module.to() does it, or the weights alone."""
        for p in self.params:
            p.data = p.data.to(dtype)
            if gradients and p.grad is not None:
                p.grad.data = p.grad.data.to(dtype)

    @precondition(lambda self: self.present)
    @rule(i=st.integers(0, 1), edit=st.sampled_from(EDITS))
    def edit_gradient(self, i: int, edit: str) -> None:
        p = self.present[i % len(self.present)]
        g = p.grad
        if edit == "scale":
            g.mul_(0.5)
        elif edit == "zero":
            g.zero_()
        elif edit == "drop":
            p.grad = None
        elif g.shape == p.shape and g.dtype == p.dtype:  # torch refuses others
            if edit == "replace":
                p.grad = g * 2
            elif edit == "other order":
                p.grad = LAYOUTS["transposed"](g)
            else:
                p.grad = torch._neg_view(-g)
        else:
            return
        self.dirty = True

    @rule(
        i=st.integers(0, 1),
        lr=st.sampled_from([0.0, 0.3, torch.tensor(0.4), torch.tensor([0.2])]),
        momentum=st.sampled_from([0.0, 0.9]),
        decay=st.sampled_from([0.0, 0.1]),
        average=st.sampled_from([None, 0.5]),
    )
    def change_group(self, i: int, lr: float | Tensor, momentum: float, decay: float, average: float | None) -> None:
        group = self.optimizer.param_groups[i % len(self.optimizer.param_groups)]
        group.update(lr=lr, momentum=momentum, weight_decay=decay, average=average)

    @precondition(lambda self: len(self.optimizer.param_groups) == 1)
    @rule(diagonal=st.booleans())
    def add_group(self, diagonal: bool) -> None:
        options = {"metric": Diagonal(eps=1e-3)} if diagonal else {}
        self.optimizer.add_param_group({"params": [self.params[1]], "lr": 0.1, **options})
        self.dirty |= self.value is None and self.params[1].grad is not None  # of no backward pass that is known

    @rule()
    def save_and_load(self) -> None:
        try:
            self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        except ValueError as error:  # of a parameter that was swapped since its state was made
            documented("it was saved with another model or in another precision" in str(error))

    # Training.

    @rule(to_none=st.booleans())
    def zero_grad(self, to_none: bool) -> None:
        self.optimizer.zero_grad(to_none)
        if len(self.optimizer.param_groups) == 1:
            self.params[1].grad = None
        self.value, self.spent, self.dirty, self.unaccounted = None, False, False, False

    @rule(seed=st.integers(3, 9))
    def backward(self, seed: int) -> None:
        live = self.params[: len(self.optimizer.param_groups)]
        score = sum((p.double() * numbers(tuple(p.shape), seed)).sum() for p in live)
        value = self.criterion(score.reshape(1, 1), torch.zeros(1, 1, dtype=torch.float64))
        left = any(bool(p.grad.any()) for p in live if p.grad is not None)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of a gradient in another order of memory
                value.backward()
        except RuntimeError as error:  # torch's own: the gradients that are there have another shape or dtype
            documented(not any(text in str(error) for text in DOCUMENTED))
            self.zero_grad(True)
            return
        fresh = self.dirty and (self.spent or not left)
        self.value = float(value.detach()) + (0.0 if fresh or self.value is None else self.value)
        self.unaccounted = left if self.dirty else self.unaccounted
        self.spent, self.dirty = self.spent and not fresh, False

    @rule(value=st.sampled_from([0.0, 0.01, 0.5, 3.0]))
    def step_with_a_value(self, value: float) -> None:
        self.take(value)

    @rule()
    def step(self) -> None:
        self.take(None)

    @rule(bad=st.sampled_from([float("nan"), float("inf")]))
    def step_with_a_bad_value(self, bad: float) -> None:
        before, skipped = self.snapshot(), int(self.optimizer.skipped)
        if self.take(bad):
            assert self.optimizer.skipped == skipped + 1
            self.assert_unchanged(before)

    def take(self, loss: float | None) -> bool:
        """Whether a step was taken; its numbers are the twin's, and after an error nothing has changed."""
        if not any(p.grad is not None for g in self.optimizer.param_groups for p in g["params"]):
            assert self.optimizer.step(loss=loss) is None
            return False
        before, edited = self.snapshot(), self.dirty or self.unaccounted
        precision = max(EPS[x.dtype] for p in self.present for x in (p, p.grad))
        value = self.optimizer._record.sums()[0] if loss is None else loss
        expected = self.expected(0.0 if value is None else float(value))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a gradient was edited
                returned = self.optimizer.step(loss=loss)
        except RuntimeError as error:
            unsuited = str(error).startswith("fused=True, but") and self.optimizer.fused
            missing = str(error).startswith("step() has no loss value") and value is None
            documented(unsuited or missing or (expected is None and str(error).startswith(DOCUMENTED)))
            self.assert_unchanged(before)
            return False
        if loss is None:
            assert edited or float(returned) == pytest.approx(self.value or 0.0, rel=precision, abs=precision)
        if returned.isfinite():  # a skipped step may not have looked at the velocities
            assert expected is not None
            self.compare(*expected, precision)
        self.spent, self.dirty, self.unaccounted = True, False, edited
        return True

    def expected(self, value: float) -> tuple[float, dict[Tensor, twin.Expected]] | None:
        try:
            return twin.step(self.optimizer, value)
        except RuntimeError:  # shapes that do not fit
            return None

    def compare(self, gamma: float, moved: dict[Tensor, twin.Expected], precision: float) -> None:
        assert float(self.optimizer.last.gamma) == pytest.approx(gamma, rel=precision, abs=10 * precision)
        for p, (w, state) in moved.items():
            for name, x in (("w", w), *state.items()):
                found = p.detach() if name == "w" else self.optimizer.state[p][name]
                bound = 10 * precision * (1 + float(w.abs().max()) + float(x.abs().max()))
                torch.testing.assert_close(
                    found.double(), x, atol=bound, rtol=0, msg=lambda m, name=name: f"{name}: {m}"
                )

    def snapshot(self) -> dict[tuple[int, str], Tensor]:
        named = enumerate({"w": p.detach(), **self.optimizer.state.get(p, {})} for p in self.params)
        return {(i, name): x.clone() for i, own in named for name, x in own.items()}

    def assert_unchanged(self, before: dict[tuple[int, str], Tensor]) -> None:
        """What is kept follows a parameter into another precision, though, and is made where it is missing."""
        after = self.snapshot()
        assert all(torch.equal(x.to(after[k].dtype), after[k]) for k, x in before.items())

    @invariant()
    def the_weights_are_finite(self) -> None:
        assert all(p.isfinite().all() for p in getattr(self, "params", []))


TestAttacks = Attacks.TestCase
TestAttacks.settings = settings(max_examples=20, stateful_step_count=20, deadline=None, derandomize=True)
