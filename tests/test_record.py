"""The record of the differentiated value comes and goes with the gradients, whoever clears them, and when."""

from __future__ import annotations

import pytest
import torch

from tests.cases import mlp
from tests.test_optimizer import batches, optimizer_for


def clear_model(model):
    model.zero_grad()


def clear_by_hand(model):
    for p in model.parameters():
        p.grad = None


each_way = pytest.mark.parametrize("clear", [clear_model, clear_by_hand])


@each_way
@pytest.mark.parametrize("when", ["before forward", "before backward", "after step"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_what_others_clear_is_gone(clear, when, compiled):
    model = mlp()
    optimizer = optimizer_for(model, lr=0.5)
    forward = lambda x, y: optimizer.loss(model(x), y)  # noqa: E731
    if compiled:  # one node gives all gradients then, in an order of its own
        forward = torch.compile(forward, fullgraph=True, backend="aot_eager")
    for x, y in batches(3):
        if when == "before forward":
            clear(model)
        value = forward(x, y)
        if when == "before backward":
            clear(model)
        value.backward()
        assert optimizer.step() == pytest.approx(float(value.detach()))
        if when == "after step":
            clear(model)
    torch._dynamo.reset()


@each_way
def test_a_batch_that_was_given_up_does_not_count(clear):
    model, ((x, y), (a, b)) = mlp(), batches(2)
    optimizer = optimizer_for(model, lr=0.5)
    optimizer.loss(model(x), y).backward()
    clear(model)
    value = optimizer.loss(model(a), b)
    value.backward()
    assert optimizer.step() == pytest.approx(float(value.detach()))


def test_gradients_that_are_kept_keep_their_value():
    """Without zero_grad() the gradients add up over the steps, and so does the value that belongs to them."""
    model, total = mlp(), 0.0
    optimizer = optimizer_for(model, lr=0.01)
    for x, y in batches(3):
        value = optimizer.loss(model(x), y)
        value.backward()
        total += float(value.detach())
        assert optimizer.step() == pytest.approx(total)
        assert optimizer.step() == pytest.approx(total)  # once more on the same gradients
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="has no loss value"):
        optimizer.step()


def test_the_value_passes_unchanged():
    """value · 1 is the value bit for bit, and so are the gradients."""
    model, (x, y) = mlp(), batches(1)[0]
    optimizer = optimizer_for(model)
    watched = optimizer.loss(model(x), y)
    gradients = torch.autograd.grad(watched, list(model.parameters()))
    plain = type(optimizer.loss)()(model(x), y)
    assert torch.equal(watched, plain)
    for a, b in zip(gradients, torch.autograd.grad(plain, list(model.parameters())), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_model_may_change_its_dtype(compiled):
    model = mlp()
    optimizer = optimizer_for(model, lr=0.5)
    model.float()
    forward = lambda x, y: optimizer.loss(model(x), y)  # noqa: E731
    if compiled:
        forward = torch.compile(forward, fullgraph=True, backend="aot_eager")
    for x, y in batches(2):
        optimizer.zero_grad()
        value = forward(x.float(), y)
        assert value.dtype == torch.float32
        value.backward()
        assert optimizer.step() == pytest.approx(float(value.detach()))
    torch._dynamo.reset()


def test_two_optimizers_may_share_a_criterion():
    model, (x, y) = mlp(), batches(1)[0]
    first, second = model[0], model[2]
    one = optimizer_for(first, lr=0.5)
    two = optimizer_for(second, loss=one.loss, lr=0.1)
    value = one.loss(model(x), y)
    value.backward()
    assert one.step() == pytest.approx(float(value.detach()))
    assert two.step() == pytest.approx(float(value.detach()))


def test_gradients_with_respect_to_other_things_leave_no_record():
    """An adversarial example, say: autograd.grad() leaves no gradient in the parameters, and no record."""
    model, (x, y) = mlp(), batches(1)[0]
    optimizer = optimizer_for(model)
    x.requires_grad_()
    torch.autograd.grad(optimizer.loss(model(x), y), x)
    value = optimizer.loss(model(x.detach()), y)
    value.backward()
    assert optimizer.step() == pytest.approx(float(value.detach()))
