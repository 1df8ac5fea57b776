"""The record of the differentiated value comes and goes with the gradients, whoever clears them, and when."""

from __future__ import annotations

import threading

import pytest
import torch

from proxsvm import ProxOptimizer
from proxsvm.losses import Atom, CrossEntropy, PiecewiseLinearLoss
from proxsvm.solvers import SingleStepFW
from tests.cases import mlp
from tests.optimizer.test_optimizer import batches, optimizer_for


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
    optimizer.zero_grad(set_to_none=False)
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


def test_two_optimizers_of_one_value_are_refused_by_closures():
    model, (x, y) = mlp(), batches(1)[0]
    one = optimizer_for(model[0], lr=0.5)
    two = optimizer_for(model[2], loss=one.loss, lr=0.1)
    value = one.loss(model(x), y)
    one.step(lambda: value)
    with pytest.raises(RuntimeError, match="another optimizer has taken a step for the same loss value"):
        two.step(lambda: value)
    two.step(lambda: two.loss(model(x), y))  # the value anew: they take turns


def test_steps_by_closures_leave_nothing_in_the_record():
    model, (x, y) = mlp(), batches(1)[0]
    optimizer = optimizer_for(model)
    for _ in range(3):  # and no zero_grad()
        optimizer.step(lambda: optimizer.loss(model(x), y))
    assert optimizer._record._used == []


def test_two_optimizers_of_one_value_are_refused():
    """Each would remove the whole loss alone. Both may watch one criterion for models of their own."""
    model, (x, y) = mlp(), batches(1)[0]
    first, second = model[0], model[2]
    one = optimizer_for(first, lr=0.5)
    two = optimizer_for(second, loss=one.loss, lr=0.1)
    value = one.loss(model(x), y)
    value.backward()
    assert one.step() == pytest.approx(float(value.detach()))
    before = second.weight.detach().clone()
    with pytest.raises(RuntimeError, match="another optimizer has taken a step for the same loss value"):
        two.step()
    assert torch.equal(before, second.weight)
    two.step(loss=value.detach() / 2)  # said by hand, it is the caller's choice


def test_gradients_with_respect_to_other_things_leave_no_record():
    """An adversarial example, say: autograd.grad() leaves no gradient in the parameters, and no record."""
    model, (x, y) = mlp(), batches(1)[0]
    optimizer = optimizer_for(model)
    x.requires_grad_()
    torch.autograd.grad(optimizer.loss(model(x), y), x)
    value = optimizer.loss(model(x.detach()), y)
    value.backward()
    assert optimizer.step() == pytest.approx(float(value.detach()))


@pytest.mark.parametrize("other", ["prox", "sgd", "frozen and attacked"])
def test_a_criterion_shared_with_another_model(other):
    """Only values that depend on an optimizer's own parameters count."""
    (x, y), (a, b) = batches(2)
    alone, model = mlp(), mlp()
    alone.load_state_dict(model.state_dict())
    lone = optimizer_for(alone, lr=0.5)
    lone.loss(alone(x), y).backward()
    lone.step()

    optimizer, stranger = optimizer_for(model, lr=0.5), mlp()
    theirs = optimizer_for(stranger, loss=optimizer.loss, lr=0.5) if other == "prox" else None
    optimizer.loss(model(x), y).backward()
    if other == "frozen and attacked":
        stranger.requires_grad_(False)
        a.requires_grad_()
    seen = optimizer.loss(stranger(a), b)
    seen.backward()
    assert optimizer.step() == pytest.approx(float(lone.last.loss))
    assert optimizer.last.gamma == lone.last.gamma
    if theirs is not None:
        value = float(theirs.step())
        assert value == pytest.approx(float(seen.detach()))


def test_two_threads_train_two_models_with_one_criterion():
    criterion = optimizer_for(mlp()).loss
    values = {}

    def work(k):
        torch.manual_seed(k)
        torch.set_default_dtype(torch.float64)
        model = mlp()
        optimizer = optimizer_for(model, loss=criterion, lr=0.5)
        for x, y in batches(20):
            optimizer.zero_grad()
            value = criterion(model(x), y)
            value.backward()
            values.setdefault(k, []).append((float(value.detach()), float(optimizer.step())))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(seen == pytest.approx(told) for k in range(2) for seen, told in values[k])


def test_further_terms_are_watched():
    model, (x, y) = mlp(), batches(1)[0]
    optimizer = optimizer_for(model, lr=0.5)

    class Penalty(torch.nn.Module):
        def forward(self, w):
            return (w**2).sum()

    penalty = optimizer.watch(Penalty())
    total = optimizer.loss(model(x), y) + 0.1 * penalty(model[0].weight)
    total.backward()
    assert optimizer.step() == pytest.approx(float(total.detach()))
    with pytest.raises(TypeError, match="expected an nn"):
        optimizer.watch(lambda w: w)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("declared", [True, False])
def test_heads_with_weights_of_their_own(passes, declared):
    """One head has its gradients before the other's backward pass begins; that is no edit (a warning is an error)."""
    body, heads = torch.nn.Linear(6, 8), [torch.nn.Linear(8, 3) for _ in range(2)]
    params = [p for module in (body, *heads) for p in module.parameters()]
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), params, lr=0.1)
    other = optimizer.watch(CrossEntropy()) if declared else optimizer.loss  # or one criterion, for both heads
    for _ in range(2):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(passes):
            x, y = torch.randn(4, 6), torch.randint(3, (4,))
            value = optimizer.loss(heads[0](body(x)), y) + other(heads[1](body(x)), y)
            value.backward()
            total += value.item()
        assert optimizer.step().item() == pytest.approx(total)


def test_a_closure_that_returns_more_than_the_criterion():
    """What the closure returns counts, and step() returns it, as torch promises."""
    model, (x, y) = mlp(), batches(1)[0]
    optimizer, twin = optimizer_for(model, lr=0.5), mlp()
    twin.load_state_dict(model.state_dict())
    reference = optimizer_for(twin, lr=0.5)

    def closure(optimizer=optimizer, model=model):
        optimizer.zero_grad()
        total = optimizer.loss(model(x), y) + 0.1 * model[0].weight.square().sum()
        total.backward()
        return total

    returned = optimizer.step(closure)
    assert returned.requires_grad  # the very tensor
    reference.step(loss=closure(reference, twin).detach())
    assert optimizer.last.loss == pytest.approx(float(returned.detach()))
    assert optimizer.last.gamma == pytest.approx(float(reference.last.gamma))


@pytest.mark.parametrize("edit", ["clip", "divide"])
def test_gradients_changed_before_the_step_are_noticed_once(edit):
    model, data = mlp(), batches(3)
    optimizer = optimizer_for(model, lr=0.5)

    def train():
        for x, y in data:
            optimizer.zero_grad()
            optimizer.loss(model(x), y).backward()
            if edit == "clip":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            else:
                for p in model.parameters():
                    p.grad.div_(2)
            optimizer.step()

    with pytest.warns(UserWarning, match=r"changed between backward.*max_grad_norm") as seen:
        train()
    assert len(seen) == 1


def test_gradients_zeroed_by_hand_take_their_value_along():
    model = mlp()
    optimizer = optimizer_for(model, lr=0.1)
    for x, y in batches(5):
        value = optimizer.loss(model(x), y)
        value.backward()
        assert optimizer.step() == pytest.approx(float(value.detach()))
        for p in model.parameters():
            p.grad.zero_()


def test_micro_batches_of_two_dtypes_add_up():
    model, ((x, y), (a, b)) = mlp(), batches(2)
    optimizer = optimizer_for(model, lr=0.5)
    first, second = optimizer.loss(model(x), y), optimizer.loss(model(a).float(), b)
    first.backward()
    second.backward()
    assert optimizer.step() == pytest.approx(float(first.detach() + second.detach()), rel=1e-6)


def test_without_gradients_a_step_does_nothing_and_a_negative_value_is_refused():
    model, (x, y) = mlp(), batches(1)[0]
    optimizer = optimizer_for(model, lr=0.5)
    assert optimizer.step() is None
    optimizer.loss(model(x), y).backward()
    with pytest.raises(ValueError, match=r"loss is -1\.0; expected 0 or more"):
        optimizer.step(loss=-1.0)
    with pytest.raises(TypeError, match=r"optimizer\.step\(loss=value\)"):
        optimizer.step(torch.tensor(1.0))
    optimizer.step(loss=torch.tensor([0.5]))
    assert optimizer.last.loss.shape == ()


def test_reentrant_checkpointing_is_refused_where_it_would_hide_parameters():
    from torch.utils.checkpoint import checkpoint

    from proxsvm import ProxOptimizer
    from proxsvm.losses import MultiClassHinge
    from proxsvm.solvers import MultiStepFW

    model, (x, y) = mlp(), batches(1)[0]
    optimizer = ProxOptimizer(MultiClassHinge(), MultiStepFW(), model.parameters())
    hidden = lambda: optimizer.loss(model[2](checkpoint(model[:2], x.requires_grad_(), use_reentrant=True)), y)  # noqa: E731
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        optimizer.step(hidden)


def test_a_value_of_zero_with_a_gradient_is_named_unless_it_is_rounding():
    w = torch.nn.Parameter(torch.tensor([[18.0, 0.0, 0.0]], dtype=torch.float32))
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), [w], lr=1.0)
    value = optimizer.loss(w, torch.tensor([0]))
    value.backward()
    assert value == 0
    assert w.grad.any()  # 1.5e-8: the value has rounded to 0
    optimizer.step()
    optimizer.zero_grad()
    (optimizer.loss(w, torch.tensor([0])) + (w**2).sum()).backward()
    with pytest.warns(UserWarning, match="a term of the loss is missing"):
        optimizer.step()


def test_without_torchs_number_of_a_backward_pass_training_is_the_same(monkeypatch):
    """It is private. Only that a gradient was edited is not seen then."""
    results = []
    for missing in (False, True):
        if missing:
            monkeypatch.delattr(torch._C, "_current_graph_task_id")
        torch.manual_seed(0)
        model = mlp()
        optimizer = optimizer_for(model, lr=0.5)
        for x, y in batches(3):
            optimizer.zero_grad(set_to_none=False)
            for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
                (optimizer.loss(model(a), b) / 2).backward()
            optimizer.step()
        results.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def penalised(optimizer, model, x, y):
    return optimizer.loss(model(x), y) + 0.1 * model[0].weight.square().sum()


@pytest.mark.parametrize("how", ["sum", "scaled sum", "two roots", "in place"])
def test_a_term_that_nobody_declared_is_noticed_once(how):
    """(criterion + penalty).backward(): its gradient is there, and its value is not."""
    model, data = mlp(), batches(3)
    optimizer = optimizer_for(model, lr=0.5)

    def train():
        for x, y in data:
            optimizer.zero_grad()
            if how == "two roots":
                torch.autograd.backward([optimizer.loss(model(x), y), model[0].weight.square().sum()])
            elif how == "in place":
                value = optimizer.loss(model(x), y)
                value += model[0].weight.square().sum()
                value.backward()
            else:
                (penalised(optimizer, model, x, y) / (4 if how == "scaled sum" else 1)).backward()
            optimizer.step()

    with pytest.warns(UserWarning, match=r"a term of the loss is missing from the record.*optimizer\.watch") as seen:
        train()
    assert len(seen) == 1


def test_a_term_that_joins_later_is_noticed_too():
    model, data = mlp(), batches(9)
    optimizer = optimizer_for(model, lr=0.5)

    def train(data, penalty):
        for x, y in data:
            optimizer.zero_grad()
            (optimizer.loss(model(x), y) + (model[0].weight.square().sum() if penalty else 0)).backward()
            optimizer.step()

    train(data[:5], False)
    with pytest.warns(UserWarning, match="a term of the loss is missing"):
        train(data[5:], True)


class Distance(PiecewiseLinearLoss):
    """|u − y|, with the slope 1 at the kink: as good a subgradient as any."""

    def oracle(self, scores, target):
        s = torch.where(scores >= target, 1.0, -1.0)
        return Atom(s, -(s * target).sum(1))


def fitted(loss, w, target, lr=0.5):
    """A step that finds the value 0, and a gradient; it moves nothing, because γ = 0."""
    w = w.requires_grad_()
    optimizer = ProxOptimizer(loss, SingleStepFW(), [w], lr=lr)

    def step(extra=lambda w: 0, parts=1):
        optimizer.zero_grad()
        for k in range(parts):
            (loss(1 * w, target) + (extra(w) if k == parts - 1 else 0)).backward()
        assert w.grad.any()
        return optimizer.step()

    return step


def test_a_tie_is_no_missing_term():
    """Warnings are errors here."""
    step = fitted(Distance(), torch.ones(1, 2), torch.ones(1, 2))
    for _ in range(9):
        assert step() == 0


def test_a_cross_entropy_that_is_rounded_to_zero_is_no_missing_term():
    """log(1 + e^-17) is 4e-8, which is nothing beside 1 in float32; its gradient is not rounded to 0."""
    step = fitted(CrossEntropy(), torch.tensor([[17.0, 0.0]], dtype=torch.float32), torch.tensor([0]), lr=1e8)
    for _ in range(9):
        assert step() == 0


@pytest.mark.parametrize("parts", [1, 2])
def test_a_term_that_joins_where_the_loss_is_zero_is_noticed(parts):
    """Without doubt only the passes 1, 2, 4, 8, … are searched."""
    step = fitted(Distance(), torch.ones(1, 2), torch.ones(1, 2))
    for _ in range(4):
        assert step(parts=parts) == 0
    with pytest.warns(UserWarning, match="a term of the loss is missing"):
        assert step(torch.sum, parts) == 0


def test_a_negative_value_is_told_once():
    model, data = mlp(), batches(3)
    optimizer = optimizer_for(model, lr=0.5)

    def train():
        for x, y in data:
            optimizer.zero_grad()
            (-optimizer.loss(model(x), y)).backward()
            optimizer.step()

    with pytest.warns(UserWarning, match="the loss value is negative; expected 0 or more") as seen:
        train()
    assert len(seen) == 1


@pytest.mark.parametrize("how", ["divided", "value given", "closure", "another network's", "frozen", "compiled"])
def test_what_is_declared_or_moves_no_parameter_is_not_missing(how):
    """Warnings are errors here."""
    model, stranger = mlp(), mlp()
    optimizer = optimizer_for(model, lr=0.5)
    forward = lambda x, y: optimizer.loss(model(x), y)  # noqa: E731
    if how == "compiled":
        forward = torch.compile(forward, fullgraph=True, backend="aot_eager")
    for x, y in batches(3):
        optimizer.zero_grad()
        if how == "value given":
            total = penalised(optimizer, model, x, y)
            total.backward()
            optimizer.step(loss=total)
        elif how == "closure":

            def closure(x=x, y=y):
                optimizer.zero_grad()
                total = penalised(optimizer, model, x, y)
                total.backward()
                return total

            optimizer.step(closure)
        else:
            other = stranger(x).square().sum()
            extra = {"another network's": other, "frozen": (model[0].weight.detach() ** 2).sum()}.get(how, 0)
            ((forward(x, y) + extra) / 2).backward()
            optimizer.step()
        assert optimizer.last.loss > 0
    torch._dynamo.reset()
