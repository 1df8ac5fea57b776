"""torch.compile: the step, the loss and the whole training step, each one graph; CUDA graphs where a GPU is."""

import math
import shutil
from functools import partial

import pytest
import torch
import torch._dynamo
import torch._inductor.metrics as metrics
from torch._dynamo.backends.registry import lookup_backend
from torch.optim import lr_scheduler

from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.cases import mlp, vector
from tests.optimizer.test_optimizer import batches

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated.*")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(way, **options):
    """Six steps of training with ``way`` compiled; the weights, what was compiled, and the last γ."""
    torch.manual_seed(0)
    compiled = []

    def counter(graph, inputs):
        run = lookup_backend("aot_eager")(graph, inputs)
        compiled.append(graph)
        return run

    model = mlp()
    options = {"lr": torch.tensor(5.0), "momentum": 0.5, "weight_decay": 1e-2, **options}
    options["lr"] = options["lr"].clone()  # it is changed in place below
    loss = options.pop("loss", MultiClassHinge)()
    optimizer = ProxOptimizer(loss, SingleStepFW(), model.parameters(), **options)
    forward = lambda x, y: optimizer.loss(model(x), y)  # noqa: E731
    step = optimizer.step

    def whole(x, y):
        optimizer.loss(model(x), y).backward()
        return optimizer.step()

    if way == "loss":
        forward = torch.compile(forward, fullgraph=True, backend=counter)
    elif way == "whole":
        whole = torch.compile(whole, fullgraph=True, backend=counter)
    elif way == "step of a scheduler":  # the scheduler's wrapper of step() is skipped, the step is one graph
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
        step = torch.compile(optimizer.step, backend=counter)
    graphs = []
    for t, (x, y) in enumerate(batches(6, n=12)):
        optimizer.zero_grad()
        x = x * math.nan if t == 3 else x  # skipped, and counted
        if way == "whole":
            with torch._dynamo.config.patch(trace_autograd_ops=True):
                whole(x, y)
        else:
            forward(x, y).backward()
            step()
        graphs.append(len(compiled))
        if way == "step of a scheduler":
            scheduler.step()
        else:
            optimizer.param_groups[0]["lr"].mul_(0.9)
    return vector(model), graphs, optimizer


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("step of a scheduler", {"fused": True, "max_grad_norm": 0.3}),
        ("loss", {}),
        ("loss", {"loss": partial(MultiClassHinge, smooth=True)}),
        ("loss", {"loss": partial(CrossEntropy, label_smoothing=0.2)}),  # which has a lower bound
        ("whole", {"metric": Diagonal(), "momentum": 0.0, "lr": torch.tensor(0.2)}),
    ],
    ids=str,
)
def test_compiled_training_is_eager_training(way, options):
    expected, _, reference = train("nothing", **options)
    weights, graphs, optimizer = train(way, **options)
    torch.testing.assert_close(weights, expected, atol=1e-9, rtol=0)
    assert optimizer.skipped == reference.skipped == 1
    assert optimizer.last.gamma == pytest.approx(float(reference.last.gamma), abs=1e-9)
    # the second step compiles once more where there is momentum, as the velocity exists by then; an lr that changes
    # at every step compiles nothing
    assert graphs[0] == 1
    assert graphs[1] <= 2
    assert graphs[1] == graphs[-1]


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_generates_few_kernels():
    """The numbers that docs/stack.md states."""
    torch.set_default_dtype(torch.float32)
    params = [torch.nn.Parameter(torch.randn(5, 4)) for _ in range(3)]
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), params, lr=torch.tensor(0.1))
    for p in params:
        p.grad = torch.randn(5, 4)
    metrics.reset()
    torch.compile(optimizer.step, fullgraph=True)(loss=torch.tensor(0.5))
    assert 0 < metrics.generated_kernel_count <= 12
    assert 0 < optimizer.last.gamma <= 1
    metrics.reset()
    scores, target = torch.randn(128, 100, requires_grad=True), torch.randint(100, (128,))
    torch.compile(MultiClassHinge(), fullgraph=True)(scores, target).backward()
    assert 0 < metrics.generated_kernel_count <= 15
