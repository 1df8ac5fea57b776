"""A followed model evaluates and saves the averages, and never loses a bit of its training weights."""

import copy
import gc
import io
import pickle
import sys
import weakref

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.swa_utils import update_bn

from proxsvm import checkpoint, follow, refresh_batch_norm, unfollow
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW
from tests.cases import K, differentiate
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer.test_averages import BETA, STEPS, go_on, make, reference
from tests.optimizer.test_optimizer import batches

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated.*")


class Net(nn.Module):
    """A backbone with batch norm, and a head."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.head = nn.Linear(6, K)

    def forward(self, x):
        return self.head(self.backbone(x))


def following(steps=5, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    model = Net().to(dtype)
    optimizer = make(model, follow=model, **options)
    go_on(model, optimizer, 0, steps, dtype)
    return model, optimizer


def values(model):
    """What is in place: state_dict() shows the averages."""
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def both(model):
    """The training weights and the averages; the model is in training mode before and after."""
    return values(model.train()), (values(model.eval()), model.train())[0]


def unchanged(model, before):
    """Whether ``both(model)`` is what it was, bit for bit."""
    return all(map(equal, both(model), before))


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", STEPS)
def test_weights_and_statistics_are_those_of_an_averaged_model(kind):
    take, options = STEPS[kind]
    model, optimizer = following(0, **options)
    torch.set_default_dtype(torch.float32)  # nothing of a float64 step passes through float32
    expected = reference(model)
    for t, (x, y) in enumerate(batches(40, n=12)):
        optimizer.zero_grad()
        broken = nn.Sequential(model, nn.LeakyReLU(float("nan")))
        take(optimizer, broken if t == 25 else model, x.double(), y)
        if t != 25:
            expected.update_parameters(model)
        if t % 10 == 0:
            before = values(model)
            close(values(model.eval()), values(expected.module))
            assert equal(values(model.train()), before)
    assert optimizer.skipped == 1
    close(values(model.eval()), values(expected.module))


def test_a_compiled_step_averages_the_statistics():
    torch._dynamo.reset()
    options = {"metric": Diagonal(), "lr": "auto", "momentum": 0.0}
    (model, optimizer), (twin, eager) = (following(0, **options) for _ in range(2))
    counter, counts = CompileCounterWithBackend("aot_eager"), []
    step = torch.compile(optimizer.step, fullgraph=True, backend=counter)
    for t, (x, y) in enumerate(batches(6, n=12)):
        differentiate(optimizer, model, x, y)
        step()
        counts.append(counter.frame_count)
        differentiate(eager, twin, x, y)
        eager.step()
        if t == 3:
            model.eval()
            model.train()
    assert optimizer.skipped == 0
    assert counts[1] == counts[-1]  # when all that is kept exists, nothing is compiled anew
    torch.testing.assert_close(both(model), both(twin), atol=1e-9, rtol=0)
    torch._dynamo.reset()


def compiled(model):
    return torch.compile(model, backend="eager")


def pickled(x):
    return pickle.loads(pickle.dumps(x))


each_mode = pytest.mark.parametrize("mode", ["train", "eval"])
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)


WRAPS = {"itself": lambda m: m, "inside": nn.Sequential, "compiled": compiled, "data parallel": nn.DataParallel}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("end", ["eval", "train(False)", "optimizer"])
def test_the_whole_model_switches_whoever_calls(wrap, end):
    torch.manual_seed(0)
    model = Net()
    outer = wrap(model)
    optimizer = make(model)
    follow(outer if wrap is not nn.Sequential else model, optimizer)
    go_on(model, optimizer, 0, 5)
    weights, averages = both(model)
    for _ in range(2):
        {"eval": outer.eval, "train(False)": lambda: outer.train(False), "optimizer": optimizer.eval}[end]()
        assert equal(values(model), averages)
        assert optimizer.averaged
    for _ in range(2):
        assert outer.train() is outer
        assert equal(values(model), weights)
        assert not optimizer.averaged
    assert model.eval() is model
    assert not model.training
    x, y = batches(1)[0]
    outer.train()
    differentiate(optimizer, outer, x, y)
    optimizer.step()
    torch._dynamo.reset()


@each_mode
@each_dtype
@pytest.mark.parametrize("wrap", list(WRAPS.values())[:3], ids=list(WRAPS)[:3])
def test_a_state_dict_holds_the_averages_in_both_modes(wrap, dtype, mode):
    model, _ = following(dtype=dtype)
    weights, averages = both(model)
    named = dict(zip([n for n, _ in (*model.named_parameters(), *model.named_buffers())], averages, strict=True))
    getattr(model, mode)()
    saved = wrap(model).state_dict()
    for other in ("eval", "train"):  # what was taken out is a copy, whatever comes before it is written
        getattr(model, other)()
        found = {name.removeprefix("0.").removeprefix("_orig_mod."): x for name, x in saved.items()}
        torch.testing.assert_close(found, named, rtol=0, atol=0)
    assert equal(values(model), weights)


def test_parts_and_keep_vars_show_what_is_in_place():
    model, _ = following()
    assert torch.equal(model.head.state_dict()["weight"], model.head.weight)
    assert model.state_dict(keep_vars=True)["head.weight"] is model.head.weight


@each_dtype
@pytest.mark.parametrize("late", [False, True], ids=["followed, then loaded", "loaded, then followed"])
@pytest.mark.parametrize("order", ["model first", "optimizer first"])
@pytest.mark.parametrize("into", ["fresh", "trained", "evaluated"])
@pytest.mark.parametrize("saved_in", ["train", "eval"])
def test_a_checkpoint_of_either_mode_resumes_bit_for_bit(saved_in, into, order, late, dtype, tmp_path):
    model, optimizer = following(dtype=dtype)
    getattr(model, saved_in)()
    checkpoint.save(tmp_path / "last.pt", model=model, optimizer=optimizer)
    go_on(model.train(), optimizer, 5, 10, dtype)

    torch.manual_seed(1)
    other = Net().to(dtype)
    resumed = make(other)
    if not late:
        follow(other, resumed)
    if into != "fresh":
        go_on(other, resumed, 0, 2, dtype)
    if into == "evaluated":
        (resumed if late else other).eval()
    parts = {"model": other, "optimizer": resumed}
    checkpoint.load(tmp_path / "last.pt", **dict(sorted(parts.items(), reverse=order == "optimizer first")))
    if late:
        follow(other, resumed)
    go_on(other.train(), resumed, 5, 10, dtype)
    assert unchanged(other, both(model))
    torch.testing.assert_close([*resumed.state.values()], [*optimizer.state.values()], rtol=0, atol=0)


@each_dtype
@each_mode
def test_loading_the_averages_that_are_in_place_changes_nothing(mode, dtype):
    model, optimizer = following(dtype=dtype)
    before, state = both(model), copy.deepcopy(list(optimizer.state.values()))
    getattr(model, mode)()
    optimizer.load_state_dict(optimizer.state_dict())  # says that the averages are in place, as the saved model has it
    model.load_state_dict(model.state_dict())
    model.eval()
    model.load_state_dict(model.state_dict())
    assert unchanged(model, before)
    torch.testing.assert_close(list(optimizer.state.values()), state, rtol=0, atol=0)


def test_a_followed_checkpoint_serves_a_model_that_follows_nobody():
    model, optimizer = following()
    state = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    weights, averages = both(model)
    alone = Net()
    resumed = make(alone)
    alone.load_state_dict(state["model"])
    assert equal(values(alone), averages)
    resumed.load_state_dict(state["optimizer"])
    x, y = batches(1)[0]
    with pytest.raises(RuntimeError, match="a state was loaded that was saved so"):
        resumed.step(lambda: resumed.loss(alone(x), y))
    resumed.train()
    assert equal(values(alone)[:6], weights[:6])
    resumed.load_state_dict(copy.deepcopy(resumed.state_dict()))
    go_on(alone, resumed, 5, 6)
    assert not any(":" in key for own in resumed.state.values() for key in own)  # no statistics that nobody follows
    resumed.load_state_dict(copy.deepcopy(resumed.state_dict()))
    follow(alone, resumed)
    go_on(alone, resumed, 6, 8)
    assert not equal(*both(alone))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@each_mode
def test_a_copy_is_a_plain_model_with_what_is_in_place(copied, mode):
    model, optimizer = following()
    weights, averages = both(model)
    getattr(model, mode)()
    other = copied(model)
    expected = averages if mode == "eval" else weights
    for change in (lambda: None, other.eval, other.train):
        change()
        assert equal(values(other), expected)
        assert equal(other.state_dict().values(), other.state_dict(keep_vars=True).values())
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    go_on(other.train(), make(other), 0, 1)
    model.train()
    assert equal(values(model), weights)
    go_on(model, optimizer, 5, 6)


def test_an_exported_program_has_the_averages():
    model, _ = following()
    x = batches(1)[0][0]
    model.eval()
    expected = model(x).detach()
    exported, traced = torch.export.export(model, (x,)), torch.jit.trace(model, x)
    files = io.BytesIO(), io.BytesIO()
    torch.export.save(exported, files[0])  # before train(): a program shares the model's tensors until it is saved
    torch.jit.save(traced, files[1])
    model.train()
    for file in files:
        file.seek(0)
    torch.testing.assert_close(torch.export.load(files[0]).module()(x), expected)
    torch.testing.assert_close(torch.jit.load(files[1])(x), expected)
    assert not torch.equal(model(x), expected)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.head = nn.Linear(5, K)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()))


@each_dtype
def test_tied_weights_stay_tied(dtype):
    model = Tied().to(dtype)
    go_on(model, make(model, follow=model), 0, 5, dtype)
    weights, saved = values(model), model.state_dict()
    assert saved["first.weight"].data_ptr() == saved["second.weight"].data_ptr()
    averages = values(model.eval())
    assert torch.equal(saved["second.weight"], averages[0])
    assert model.first.weight is model.second.weight
    model.load_state_dict(saved)
    assert equal(values(model.train()), weights)
    model.load_state_dict(saved)
    assert equal(values(model), averages)


def test_frozen_parameters_groups_without_an_average_and_parameters_that_come_later():
    torch.manual_seed(0)
    model = nn.Sequential(Net(), nn.Linear(K, K), nn.Linear(K, K))
    model[0].backbone[0].weight.requires_grad_(False)
    groups = [{"params": list(model[0].parameters()), "average": BETA}, {"params": list(model[1].parameters())}]
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), groups, lr=0.5, follow=model)
    go_on(model, optimizer, 0, 3)
    weights, averages = both(model)
    changed = [not torch.equal(a, b) for a, b in zip(weights, averages, strict=True)]
    changed[1] = True  # batch norm takes this bias out again: it hardly moves
    assert changed == [False, *[True] * 5, *[False] * 4, True, True, False]
    model.eval()
    optimizer.add_param_group({"params": list(model[2].parameters()), "average": 0.5})
    assert equal(values(model), averages)
    model.train()
    go_on(model, optimizer, 3, 6)
    weights, averages = both(model)
    assert not torch.equal(weights[8], averages[8])
    assert torch.equal(weights[6], averages[6])


def test_layers_that_come_later_are_followed_again():
    model, optimizer = following()
    model.head = nn.Sequential(model.head, nn.Linear(K, K), nn.BatchNorm1d(K))
    optimizer.add_param_group({"params": list(model.head[1:].parameters())})
    follow(model, optimizer)
    follow(model, optimizer)
    go_on(model, optimizer, 5, 6)
    weights, averages = both(model)
    torch.testing.assert_close(averages[-3], 0.6 * weights[-3])  # from 0, with β = (1 + 5)/(10 + 5)
    assert torch.equal(averages[-3], model.state_dict()["head.2.running_mean"])


def test_what_cannot_be_followed_is_said():
    model = Net()
    for act in (lambda: follow(model, make(model, average=None)), lambda: make(model, average=None, follow=model)):
        with pytest.raises(ValueError, match=r"keeps no average to follow: ProxOptimizer\(..., average=0.995\)"):
            act()
    with pytest.raises(TypeError, match="optimizer is a SGD; expected a ProxOptimizer"):
        follow(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(TypeError, match=r"model is a list; expected the nn\.Module"):
        follow([model], make(model))
    with pytest.raises(ValueError, match="4 of the optimizer's 6 parameters are not in this Linear"):
        follow(model.head, make(model))


def test_a_model_follows_one_optimizer():
    model, optimizer = following()
    weights, averages = both(model)
    parts = [
        ProxOptimizer(MultiClassHinge(), SingleStepFW(), part.parameters(), average=0.5)
        for part in (model.backbone, model.head)
    ]
    pair = nn.ModuleList([model])
    with pytest.raises(ValueError, match="another model follows this optimizer"):
        follow(pair, optimizer)
    model.eval()
    with pytest.raises(ValueError, match=r"call model\.train\(\)"):
        follow(model, make(model))
    model.train()
    newer = make(model)
    follow(model, newer)
    go_on(model, newer, 5, 8)
    weights = values(model)
    optimizer.eval()  # the old one still has its averages, but the model is not its own any more
    assert equal(values(model)[:6], averages[:6])
    optimizer.train()
    assert equal(values(model), weights)
    assert not equal(*both(model))
    follow(model, parts[0])
    with pytest.raises(ValueError, match=r"follow\(model\.generator, first\)"):
        follow(model, parts[1])
    follow(model.head, parts[1])


def test_a_converted_model_is_refused_before_its_mode_changes():
    model, _ = following()
    model.eval()
    model.half()
    with pytest.raises(RuntimeError, match=r"copy\.deepcopy\(model\)\.half\(\)"):
        model.train()
    assert not model.training
    model.double()
    model.train()
    model.half()
    with pytest.raises(RuntimeError, match=r"now: .*torch\.float16"):
        model.eval()
    assert model.training


def test_statistics_of_another_model_are_refused():
    _, optimizer = following()
    other = Net()
    other.backbone[1] = nn.BatchNorm1d(6)
    other.backbone[1].running_mean = torch.zeros(7)
    resumed = make(other)
    follow(other, resumed)
    with pytest.raises(ValueError, match=r"backbone\.1\.running_mean.* is \(6,\), .*; expected .*\(7,\)"):
        resumed.load_state_dict(optimizer.state_dict())


def test_nothing_is_kept_alive_beyond_the_model():
    model, optimizer = following()
    kept = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert kept() is not None
    assert not torch.equal(*(v[0] for v in both(model)))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert kept() is None


class Interrupt:
    """Raises KeyboardInterrupt at the k-th line that is executed in some files."""

    def __init__(self, k, files=("averages.py",)):
        self.left, self.files = k, files

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    def __enter__(self):
        sys.settrace(self)

    def __exit__(self, *_):
        sys.settrace(None)


@each_dtype
@pytest.mark.parametrize("then", ["train", "eval"])
@pytest.mark.parametrize("start", ["train", "eval"])
def test_a_switch_that_was_interrupted_anywhere_can_be_completed(start, then, dtype):
    """Both versions are there after every line; no step starts in between, and what is saved is whole."""
    model, optimizer = following(3, dtype=dtype)
    weights, averages = both(model)
    other = {"train": "eval", "eval": "train"}[start]
    x, y = batches(1)[0]
    k, finished = 1, False
    while not finished:
        getattr(model, start)()
        try:
            with Interrupt(k):
                getattr(model, other)()
                finished = True
        except KeyboardInterrupt:
            saved = model.state_dict()
            assert equal([saved[n] for n, _ in (*model.named_parameters(), *model.named_buffers())], averages)
            if not equal(values(model), weights):
                with pytest.raises(RuntimeError, match="averaged weights are in place"):
                    optimizer.step(lambda: optimizer.loss(model(x), y))
        assert equal(values(getattr(model, then)()), weights if then == "train" else averages), k
        assert unchanged(model, (weights, averages)), k
        k += 7
    assert k > 100


@each_mode
def test_a_model_that_follows_no_more_is_an_ordinary_one(mode):
    model, optimizer = following()
    weights, averages = both(model)
    getattr(model, mode)()
    outer = nn.ModuleList([model])
    unfollow(outer)
    assert type(model) is Net
    expected = averages if mode == "eval" else weights
    for change in (model.eval, model.train):
        change()
        assert equal(values(model), expected)
    assert equal(model.state_dict().values(), model.state_dict(keep_vars=True).values())
    optimizer.train()
    assert equal(values(model)[:6], weights[:6])
    go_on(model, optimizer, 5, 6)
    assert not any(":" in key for own in optimizer.state.values() for key in own)
    follow(model, optimizer)
    go_on(model, optimizer, 6, 8)
    assert not equal(*both(model))


@pytest.mark.parametrize("copied", [lambda m: m, copy.deepcopy], ids=["itself", "copy"])
def test_a_followed_model_can_be_scripted(copied):
    model, _ = following()
    x = batches(1)[0][0]
    expected = model.eval()(x).detach()
    torch.testing.assert_close(torch.jit.script(copied(model))(x), expected)


def test_a_saved_model_does_not_need_this_package():
    model, _ = following()
    data = pickle.dumps(nn.Sequential(model.backbone, model.head))
    follow(whole := nn.Sequential(nn.Linear(2, 2)), make(whole))
    for found in (data, pickle.dumps(whole)):
        assert b"proxsvm" not in found
    assert type(copy.deepcopy(whole)) is nn.Sequential


# Batch-norm statistics that are estimated anew for the averages, while training goes on as before.

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
    ("loader", "limit", "error", "message"),
    [
        ([], None, ValueError, "the loader yielded no batch"),
        (INPUTS, 0, ValueError, "batches is 0; expected None, for all, or 1 or more"),
        ([INPUTS[0], torch.zeros(2, 3, dtype=torch.float64)], None, RuntimeError, "shapes cannot be multiplied"),
    ],
)
@each_mode
def test_what_goes_wrong_changes_nothing(loader, limit, error, message, mode):
    model, optimizer = following()
    before = both(model)
    getattr(model, mode)()
    with pytest.raises(error, match=message):
        refresh_batch_norm(model, loader, limit)
    assert model.training == (mode == "train")
    assert optimizer.averaged == (mode == "eval")
    assert unchanged(model, before)


def test_a_model_without_statistics_needs_no_batch():
    for model in (nn.Linear(5, K), nn.BatchNorm1d(5, track_running_stats=False)):
        before = copy.deepcopy(model.state_dict())
        refresh_batch_norm(model, [])
        assert equal(list(model.state_dict().values()), list(before.values()))
