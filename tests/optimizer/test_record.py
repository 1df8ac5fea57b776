"""The record of the differentiated value comes and goes with the gradients, whoever clears them, and when."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from proxsvm.losses import Atom, CrossEntropy, MultiClassHinge, PiecewiseLinearLoss
from proxsvm.optimizer.record import Record, watch
from proxsvm.solvers import MultiStepFW, SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.cases import differentiate, mlp, twins
from tests.optimizer.test_optimizer import batches, begun, optimizer_for, train


def clear_model(model):
    model.zero_grad()


def clear_by_hand(model):
    for p in model.parameters():
        p.grad = None


def forward_of(model, compiled):
    """An optimizer and the forward pass; compiled, one node gives all gradients, in an order of its own."""
    optimizer = optimizer_for(model, lr=0.5)
    forward = lambda x, y: optimizer.loss(model(x), y)  # noqa: E731
    return optimizer, torch.compile(forward, fullgraph=True, backend="aot_eager") if compiled else forward


@pytest.mark.parametrize(
    ("clear", "when", "compiled"),
    [
        (clear_model, "before forward", False),
        (clear_by_hand, "before forward", True),
        (clear_model, "before backward", True),
        (clear_by_hand, "before backward", False),
        (clear_by_hand, "after step", True),
    ],
)
def test_what_others_clear_is_gone(clear, when, compiled):
    optimizer, forward = forward_of(model := mlp(), compiled)
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
    model, optimizer, (x, y) = begun()
    watched = optimizer.loss(model(x), y)
    plain = type(optimizer.loss)()(model(x), y)
    found, expected = ((value, *torch.autograd.grad(value, list(model.parameters()))) for value in (watched, plain))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_model_may_change_its_dtype(compiled):
    optimizer, forward = forward_of(model := mlp(), compiled)
    model.float()
    for x, y in batches(2):
        optimizer.zero_grad()
        value = forward(x.float(), y)
        assert value.dtype == torch.float32
        value.backward()
        assert optimizer.step() == pytest.approx(float(value.detach()))
    torch._dynamo.reset()


@pytest.mark.parametrize("zeroed", ["before forward", "before backward", "never", "by closures"])
def test_two_optimizers_of_one_value_are_refused(zeroed):
    """Each would remove the whole loss alone. Both may watch one criterion for models of their own."""
    model, (x, y) = mlp(), batches(1)[0]
    first, second = model[0], model[2]
    one = optimizer_for(first, lr=0.5)
    two = optimizer_for(second, loss=one.loss, lr=0.1)
    for optimizer in (one, two) if zeroed == "before forward" else ():
        optimizer.zero_grad()
    value = one.loss(model(x), y)
    for optimizer in (one, two) if zeroed == "before backward" else ():
        optimizer.zero_grad()
    closure = (lambda: value) if zeroed == "by closures" else value.backward()
    assert one.step(closure).detach() == pytest.approx(float(value.detach()))
    before = second.weight.detach().clone()
    with pytest.raises(RuntimeError, match="another optimizer has taken a step for the same loss value"):
        two.step(closure)
    assert torch.equal(before, second.weight)
    two.step(lambda: two.loss(model(x), y))  # the value anew: they take turns
    two.step(loss=value.detach() / 2)  # said by hand, it is the caller's choice


@pytest.mark.parametrize("other", ["prox", "sgd", "frozen and attacked"])
def test_a_criterion_shared_with_another_model(other):
    """Only values that depend on an optimizer's own parameters count."""
    ((x, y), (a, b)), (alone, model), stranger = batches(2), twins(), mlp()
    lone, optimizer = optimizer_for(alone, lr=0.5), optimizer_for(model, lr=0.5)
    train(lone, alone, [(x, y)])
    theirs = optimizer_for(stranger, loss=optimizer.loss, lr=0.5) if other == "prox" else None
    optimizer.loss(model(x), y).backward()
    if other == "frozen and attacked":
        stranger.requires_grad_(False)
        a.requires_grad_()
    seen = optimizer.loss(stranger(a), b)
    seen.backward()
    assert optimizer.step() == pytest.approx(float(lone.last.loss))
    assert optimizer.last.gamma == lone.last.gamma
    assert theirs is None or theirs.step() == pytest.approx(float(seen.detach()))


def test_a_closure_that_returns_more_than_the_criterion():
    """What the closure returns counts, and step() returns it, as torch promises."""
    (model, twin), (x, y) = twins(), batches(1)[0]
    optimizer, reference = optimizer_for(model, lr=0.5), optimizer_for(twin, lr=0.5)

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


@pytest.mark.parametrize("whole", [True, False])
def test_a_closure_of_several_passes_returns_their_sum(whole):
    """The value of the last pass alone would make γ too small. Warnings are errors here."""
    model, optimizer, _ = begun(lr=50.0)

    def closure():
        optimizer.zero_grad()
        values = [optimizer.loss(model(x), y) / 4 for x, y in batches(4)]
        for value in values:
            value.backward()
        return sum(values) if whole else values[-1]

    if whole:
        assert 0 < optimizer.step(closure) == optimizer.last.loss
    else:
        with pytest.warns(UserWarning, match=r"the closure returned less than .*return the sum"):
            optimizer.step(closure)


def test_without_gradients_a_step_does_nothing_and_a_negative_value_is_refused():
    model, optimizer, (x, y) = begun(lr=0.5)
    assert optimizer.step() is None
    optimizer.loss(model(x), y).backward()
    with pytest.raises(ValueError, match=r"loss is -1\.0; expected 0 or more"):
        optimizer.step(loss=-1.0)
    with pytest.raises(TypeError, match=r"optimizer\.step\(loss=value\)"):
        optimizer.step(torch.tensor(1.0))
    optimizer.step(loss=torch.tensor([0.5]))
    assert optimizer.last.loss.shape == ()


def test_a_cross_entropy_that_is_rounded_to_zero_is_no_missing_term():
    """log(1 + e^-17) is 4e-8, which is nothing beside 1 in float32; its gradient is not rounded to 0."""
    w = torch.tensor([[17.0, 0.0]], dtype=torch.float32, requires_grad=True)
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), [w], lr=1.0)
    optimizer.loss(1 * w, torch.tensor([0])).backward()
    assert w.grad.any()
    assert optimizer.step() == 0


def test_an_edit_that_changes_nothing_is_no_edit():
    """Hugging Face's Trainer clips at infinity where max_grad_norm is 0. Warnings are errors here."""
    model, optimizer, _ = begun(lr=0.5)
    for x, y in batches(2):
        differentiate(optimizer, model, x, y)
        torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        for p in model.parameters():
            p.grad = p.grad.clone()
        optimizer.step()


def gradient_penalty(value, model, x):
    (grad,) = torch.autograd.grad(value, x, create_graph=True)
    return value + 3 * grad.square().sum()


def one_inner_step(value, model, x):
    """MAML: the value after a step of gradient descent on it."""
    params = dict(model.named_parameters())
    grads = torch.autograd.grad(value, list(params.values()), create_graph=True)
    moved = {name: p - 0.1 * g for (name, p), g in zip(params.items(), grads, strict=True)}
    return torch.func.functional_call(model, moved, (x,)).square().sum()


FUNCTIONS = {
    "root": lambda v, *_: v.sqrt(),
    "exp": lambda v, *_: v.exp(),
    "square": lambda v, *_: v**2,
    "log-sum-exp": lambda v, *_: torch.stack([v, 2 * v]).logsumexp(0),
    "ratio": lambda v, *_: v / (1 + v),
    "undeclared": lambda v, model, x: v + model[0].weight.square().sum(),
    "gradient penalty": gradient_penalty,
    "inner step": one_inner_step,
}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_backward_records_what_it_differentiates(name, scaled, parts):
    model, twin = twins()
    optimizer, reference = optimizer_for(model, lr=0.5), optimizer_for(twin, lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
    for x, y in batches(2):
        optimizer.zero_grad()
        reference.zero_grad()
        sum_of_totals = 0.0
        for _ in range(parts):
            x = x.detach().requires_grad_()
            total = FUNCTIONS[name](optimizer.loss(model(x), y), model, x)
            optimizer.backward(scaler.scale(total))
            plain = type(reference.loss)()  # which nobody watches
            expected = FUNCTIONS[name](plain(twin(x), y), twin, x)
            expected.backward()
            sum_of_totals += float(expected.detach())
        scaler.step(optimizer)
        scaler.update()
        reference.step(loss=sum_of_totals)
        assert float(optimizer.last.loss) == pytest.approx(sum_of_totals, rel=1e-9)
        assert float(optimizer.last.gamma) == pytest.approx(float(reference.last.gamma), rel=1e-9)
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()))


def test_backward_adds_up_with_plain_passes_and_refuses_what_has_no_value():
    model, ((x, y), (a, b)) = mlp(), batches(2)
    optimizer = optimizer_for(model, lr=0.5)
    first, second = optimizer.loss(model(x), y), optimizer.loss(model(a), b)
    first.backward()
    optimizer.backward(second.sqrt())
    assert optimizer.step() == pytest.approx(float(first.detach() + second.detach().sqrt()))
    with pytest.raises(RuntimeError, match="scalar outputs"):
        optimizer.backward(model(x))


def test_second_order_graphs_and_weights_that_differ_are_told():
    model, optimizer, (x, y) = begun(lr=0.5)
    x.requires_grad_()
    gradient_penalty(optimizer.loss(model(x), y), model, x).backward()
    with pytest.warns(UserWarning, match=r"create_graph=True.*optimizer\.backward\(total\)"):
        optimizer.step()
    optimizer = optimizer_for(model, loss=CrossEntropy(reduction="none"), lr=0.5)
    each = optimizer.loss(model(x), y)
    (each * (1 - (-each).exp()) ** 2).mean().backward()  # focal
    with pytest.warns(UserWarning, match=r"different weights.*optimizer\.backward\(total\)"):
        optimizer.step()
    optimizer.zero_grad()
    each = optimizer.loss(model(x), y)
    (each * torch.arange(len(each)).clamp(max=1)).sum().backward()  # a mask, and no warning
    optimizer.step()


class Around(torch.nn.Module):
    """A module that calls the criterion, and adds a penalty."""

    def __init__(self, criterion):
        super().__init__()
        self.criterion = criterion

    def forward(self, scores, y, w):
        return self.criterion(scores, y) + 0.1 * (w**2).sum()


def test_a_value_counts_once_however_it_is_watched():
    optimizer = optimizer_for(model := mlp(), lr=0.5)
    optimizer.watch(optimizer.loss)
    around = Around(optimizer.loss)
    for x, y in batches(3):
        optimizer.watch(around)
        optimizer.zero_grad()
        total = around(model(x), y, model[0].weight)
        total.backward()
        assert optimizer.step() == pytest.approx(float(total.detach()))
    with pytest.raises(ValueError, match="got a target"):
        around(torch.zeros(2, 3), torch.zeros(5, dtype=torch.long), model[0].weight)  # an error inside
    value = differentiate(optimizer, model, x, y)
    assert optimizer.step() == pytest.approx(float(value))  # directly, it still counts
    root = optimizer.watch(Function(torch.sqrt))
    total = root(optimizer.loss(model(x), y))
    optimizer.zero_grad()
    (3 * total).backward()
    assert optimizer.step() == pytest.approx(3 * float(total.detach()))


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def test_a_watched_module_returns_a_value():
    optimizer = optimizer_for(mlp())
    term = optimizer.watch(Function(lambda: {"value": 1}))
    with pytest.raises(TypeError, match="Function is watched, and returned a dict; expected a tensor"):
        term()


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_criterion_of_two_optimizers_records_each_value_once():
    """Which value is whose is in the graph, so this part runs in eager mode, and fullgraph=True is refused."""
    criterion, models = MultiClassHinge(), [mlp(), mlp()]
    optimizers = [optimizer_for(m, loss=criterion, lr=0.5) for m in models]
    forward = torch.compile(lambda m, x, y: criterion(m(x), y), backend="aot_eager")
    for x, y in batches(2):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            forward(model, x, y).backward()
        for model, optimizer in zip(models, optimizers, strict=True):
            expected = float(MultiClassHinge()(model(x), y).detach())
            assert optimizer.step() == pytest.approx(expected)
    halves = mlp()
    one, two = (optimizer_for(part, loss=criterion, lr=0.5) for part in (halves[0], halves[2]))
    forward(halves, x, y).backward()
    one.step()
    with pytest.raises(RuntimeError, match="another optimizer has taken a step for the same loss value"):
        two.step()
    whole = torch.compile(lambda m, x, y: criterion(m(x), y), backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="_values_of_several_modules_or_optimizers"):
        whole(models[0], x, y)
    torch._dynamo.reset()


def test_sharded_models_that_share_a_criterion_are_told():
    """Under FSDP2 the graph does not contain the parameters: which value is whose is unknown."""
    w, module = torch.ones(2, requires_grad=True), torch.nn.Identity()
    records = [Record(lambda: [w], hidden=True) for _ in range(2)]
    watch(module, records[0])
    module(w.sum()).backward()
    assert records[0].leaf.grad[0] == 2
    watch(module, records[1])
    with pytest.raises(RuntimeError, match="give every optimizer a criterion of its own"):
        module(w.sum())
    del records[1]
    module(w.sum()).backward()
    assert records[0].leaf.grad[0] == 4


def test_a_value_whose_scale_is_unknown_is_refused():
    model, (x, y) = mlp(), batches(1)[0]
    optimizer, scaler = optimizer_for(model, lr=0.5), torch.amp.GradScaler("cpu", init_scale=8.0)
    value = optimizer.loss(model(x), y)
    scaler.scale(value).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"max_grad_norm=.*scaler\.step\(optimizer, loss=loss\)"):
        scaler.step(optimizer)
    scaler.step(optimizer, loss=value)
    assert optimizer.last.loss == pytest.approx(float(value.detach()))


def test_a_step_that_raises_leaves_no_scale_behind():
    model, (x, y) = mlp(), batches(1)[0]
    optimizer, scaler = optimizer_for(model, lr=0.5), torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(CrossEntropy()(model(x), y)).backward()  # of another criterion
    with pytest.raises(RuntimeError, match="has no loss value"):
        scaler.step(optimizer)
    assert not {"grad_scale", "found_inf"} & set(vars(optimizer))
    scaler.update()
    optimizer.zero_grad()
    value = optimizer.loss(model(x), y)
    scaler.scale(value).backward()
    scaler.step(optimizer)
    assert optimizer.last.loss == pytest.approx(float(value.detach()))


class Distance(PiecewiseLinearLoss):
    """|u − y|, with the slope 1 at the kink: as good a subgradient as any."""

    def oracle(self, scores, target):
        s = torch.where(scores >= target, 1.0, -1.0)
        return Atom(s, -(s * target).sum(1))


MISSING = r"a term of the loss is missing from the record.*optimizer\.watch"
WRONG = {
    "clipped": r"changed between backward.*max_grad_norm",
    "replaced": r"changed between backward.*max_grad_norm",
    "replaced in between": r"changed between backward.*max_grad_norm",
    "zeroed": r"changed between backward.*optimizer\.zero_grad\(\)",
    "negated": "the loss value is negative; expected 0 or more",
    "penalised": MISSING,
    "another head": MISSING,
    "at a kink": r"value is 0, but its gradient is not.*optimizer\.backward\(total\)",
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_told_once(what):
    model, optimizer, _ = begun(loss=Distance() if what == "at a kink" else MultiClassHinge(), lr=0.5)

    def train():
        for x, y in batches(3):
            (model if what == "zeroed" else optimizer).zero_grad(set_to_none=what != "zeroed")
            scores = model(x)
            if what == "another head":
                (optimizer.loss(model[0](x), y) + scores.square().sum()).backward()
            else:
                value = optimizer.loss(scores, scores.detach() if what == "at a kink" else y)
                (-value if what == "negated" else value).backward()
            if what.startswith("replaced"):
                for p in model.parameters():
                    p.grad = p.grad * 0.1
            if what == "replaced in between":
                optimizer.loss(model(x), y).backward()
            if what == "clipped":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if what == "penalised":
                sum(p.sum() for p in model.parameters()).backward()
            optimizer.step()

    with pytest.warns(UserWarning, match=WRONG[what]) as seen:
        train()
    assert len(seen) == 1
    assert seen[0].filename == __file__  # not torch's optimizer.py


def test_a_batch_without_loss_is_not_told_while_the_past_moves_the_parameters():
    """Warnings are errors here: the value 0 has the gradient 0, whatever the memory adds to it."""
    model, ((x, y),) = mlp(), batches(1)
    optimizer = optimizer_for(model, lr=0.1, memory=0.9)
    for scale in (1.0, 0.0):  # the second batch is right by any margin
        optimizer.zero_grad()
        optimizer.loss(scale * model(x) + 9 * (1 - scale) * torch.eye(4)[y], y).backward()
        before = model[0].weight.clone()
        optimizer.step()
        assert not torch.equal(before, model[0].weight)
    assert optimizer.last.loss == 0


def test_reentrant_checkpointing_is_refused_where_it_would_hide_parameters():
    model, optimizer, (x, y) = begun(MultiStepFW())
    hidden = lambda: optimizer.loss(model[2](checkpoint(model[:2], x.requires_grad_(), use_reentrant=True)), y)  # noqa: E731
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        optimizer.step(hidden)
