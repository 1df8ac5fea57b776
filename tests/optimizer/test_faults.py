"""Faults: killed processes, wrong checkpoints, dying ranks, NaN for 2,000 steps, memory."""

import copy
import gc
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from proxsvm import checkpoint
from proxsvm.losses import L1Regression, MultiClassHinge
from proxsvm.solvers import SingleStepFW
from tests.cases import K, differentiate, mlp
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer.test_optimizer import batches, optimizer_for, train
from tests.parallel import run_on_ranks

# Gradients are poisoned by hand here, which the optimizer notices.
pytestmark = pytest.mark.filterwarnings("ignore:a gradient was changed:UserWarning")


def trained(model):
    optimizer, dtype = optimizer_for(model, lr=0.5, momentum=0.9), next(model.parameters()).dtype
    train(optimizer, model, [(x.to(dtype), y) for x, y in batches(3)])
    return model, optimizer


def same(a, b):
    flat = [torch.utils._pytree.tree_flatten(x) for x in (a, b)]
    return flat[0][1] == flat[1][1] and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(flat[0][0], flat[1][0], strict=True)
    )


SAVER = """
import sys, torch
from torch import nn
from proxsvm import checkpoint
def fsync(file):                               # the second checkpoint is never flushed
    print("writing", flush=True)
    import time; time.sleep(60)
model = nn.Linear(200, 200)
with torch.no_grad():
    for p in model.parameters(): p.fill_(1.0)
checkpoint.save(sys.argv[1], model=model, epoch=1)
with torch.no_grad():
    for p in model.parameters(): p.fill_(2.0)
checkpoint.os.fsync = fsync
checkpoint.save(sys.argv[1], model=model, epoch=2)
"""


def test_kill_9_while_saving_leaves_the_previous_checkpoint(tmp_path):
    path = tmp_path / "last.pt"
    with subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "writing\n"
        process.kill()
    model = nn.Linear(200, 200, dtype=torch.float32)
    assert checkpoint.load(path, model=model) == {"epoch": 1}
    assert all((p == 1).all() for p in model.parameters())
    assert len(list(tmp_path.iterdir())) == 2  # the unfinished file lies beside it, and is in nobody's way
    checkpoint.save(path, model=model, epoch=3)
    assert checkpoint.load(path, model=model) == {"epoch": 3}


OTHERS = {
    "other shapes": lambda: nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, K)),
    "deeper": lambda: nn.Sequential(*mlp(), nn.Linear(K, K)),
    "another dtype": lambda: mlp().float(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_model_changes_nothing(name, tmp_path):
    model, optimizer = trained(mlp())
    checkpoint.save(tmp_path / "c.pt", model=model, optimizer=optimizer)
    model, optimizer = trained(OTHERS[name]())
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for parts in ({"model": model, "optimizer": optimizer}, {"model": model}, {"optimizer": optimizer}):
        with pytest.raises(ValueError, match="does not fit"):
            checkpoint.load(tmp_path / "c.pt", **parts)
    assert same(before, (model.state_dict(), optimizer.state_dict()))


def die_at_step_three(rank):
    model = DistributedDataParallel(mlp())
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), model.parameters(), lr=0.1)
    for t, (x, y) in enumerate(batches(6)):
        differentiate(optimizer, model, x, y)
        if rank == 1 and t == 3:
            os._exit(9)  # between backward() and step(): the other waits in the optimizer's own reduction
        try:
            optimizer.step()
        except RuntimeError as error:
            assert t == 3
            dist.destroy_process_group = lambda: None  # the group is broken
            return f"{type(error).__name__}: {error}"
    return "no error"


def test_a_rank_that_dies_ends_the_others_with_an_error():
    first, second = run_on_ranks(die_at_step_three)
    assert second == {"died": 9}
    assert "Error" in first
    assert "no error" not in first


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads the resident memory from /proc")
def test_two_thousand_steps_with_faults_in_one_percent():
    """The weights stay finite and equal to those of a run without the bad steps; memory does not grow."""
    steps = 2_000
    draw = torch.Generator().manual_seed(5)
    bad = torch.rand(steps, generator=draw) < 0.01
    kinds = torch.randint(4, (steps,), generator=draw)
    values = [float("nan"), float("inf"), -float("inf")]
    data = [(x, torch.randn(4, 1)) for x, _ in batches(16, n=4)]
    clean, memory, objects = nn.Linear(5, 1, bias=False), [], []
    faulty, options = copy.deepcopy(clean), {"lr": 0.3, "momentum": 0.9, "weight_decay": 1e-3}
    reference, optimizer = (optimizer_for(m, loss=L1Regression(), **options) for m in (clean, faulty))
    for t in range(steps):
        x, y = data[t % len(data)]
        optimizer.zero_grad()
        value, kind = (values[t % 3], int(kinds[t])) if bad[t] else (1.0, 0)
        if kind == 1:
            optimizer.loss(faulty(x * value), y).backward()
        else:
            (optimizer.loss(faulty(x), y) * (value if kind == 0 else 1.0)).backward()
        if kind > 1:
            faulty.weight.grad[0, kind] = value
        optimizer.step()
        if not bad[t]:
            train(reference, clean, [(x, y)])
        if t % 10 == 0:
            optimizer.loss(faulty(x), y)  # forgotten: never differentiated
            with torch.no_grad():
                optimizer.loss(faulty(x), y)
        if t % 400 == 399:
            gc.collect()
            memory.append(resident())
            objects.append(len(gc.get_objects()))
            assert all(p.isfinite().all() for p in faulty.parameters())
    assert torch.equal(clean.weight, faulty.weight)
    assert optimizer.skipped == int(bad.sum())
    assert memory[-1] - memory[2] < 2**20, memory  # caches of earlier tests may still grow in the first thousands
    assert objects[-1] - objects[1] < 200, objects
