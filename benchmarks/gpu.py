"""Everything to be measured once a GPU is available: ``python -m benchmarks gpu``.

First whether the kernels agree with torch's own operations; then what a step, the criterion and a whole training step
cost compared with SGD and Adam, eager and replayed as a CUDA graph; memory; and DDP over NCCL on all devices. It has
not been run on a GPU yet: the tests run its parts on the CPU.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common import Options, write
from benchmarks.criterion import both
from benchmarks.step import LISTS, NESTEROV
from experiments.models import WideResNet
from proxsvm import ProxOptimizer
from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW

NO_GPU = "no GPU here: nothing was measured"
Shapes = list[tuple[int, ...]]
Run = Callable[[], Any]
ADAM: dict[str, Any] = {"lr": 1e-3, "weight_decay": 1e-4}
WAYS = {"foreach": {"foreach": True}, "fused": {"fused": True}}
OURS: dict[str, dict[str, Any]] = {
    "SingleStepFW": {},
    "SingleStepFW fused=False": {"fused": False},
    "SingleStepFW, average": {"average": 0.99},
    "SingleStepFW, Diagonal()": {"metric": Diagonal()},
    "SingleStepFW, Diagonal() fused=False": {"metric": Diagonal(), "fused": False},
}


def wait(device: str) -> None:
    """Wait for everything that was launched."""
    if device != "cpu":
        torch.cuda.synchronize()


def timed(run: Run, device: str, repeats: int, inner: int = 10) -> dict[str, float]:
    """Medians in milliseconds: until the host is free again, and until the device has finished."""
    run(), run(), wait(device)
    host, whole = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(inner):
            run()
        host.append((time.perf_counter() - began) / inner)
        wait(device)
        whole.append((time.perf_counter() - began) / inner)
    return {"host, ms": 1e3 * statistics.median(host), "ms": 1e3 * statistics.median(whole)}


def peak(run: Run, device: str) -> float:
    """Megabytes that a run allocates."""
    if device == "cpu":
        return float("nan")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(), wait(device)
    return (torch.cuda.max_memory_allocated() - before) / 1e6


# A step alone.


def parameters(shapes: Shapes, device: str) -> list[nn.Parameter]:
    """Seeded parameters with gradients."""
    torch.manual_seed(0)
    made = [nn.Parameter((torch.randn(shape) / 20).to(device)) for shape in shapes]
    for p in made:
        p.grad = (torch.randn(p.shape) / 100).to(device)
    return made


def ours(params: list[nn.Parameter], **options: Any) -> Run:
    """A step of SingleStepFW with a given value."""
    value = torch.tensor(0.01, device=params[0].device)
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), params, **{**NESTEROV, **options})
    return lambda: optimizer.step(loss=value)


def agreement(device: str, shapes: Shapes, steps: int = 20) -> list[dict[str, Any]]:
    """How far the default's weights are from those of torch's own operations after some steps."""
    rows = []
    for name in ("SingleStepFW", "SingleStepFW, average", "SingleStepFW, Diagonal()"):
        ends = []
        for fused in (None, False):
            params = parameters(shapes, device)
            step = ours(params, **OURS[name], fused=fused)
            for _ in range(steps):
                step()
            ends.append(torch.cat([p.detach().reshape(-1) for p in params]))
        rows.append({"optimizer": name, "largest difference": float((ends[0] - ends[1]).abs().max())})
    return rows


def step_rows(device: str, lists: dict[str, Shapes], repeats: int) -> list[dict[str, Any]]:
    """Time and temporary memory of a step of each optimizer."""
    rows = []
    for which, shapes in lists.items():
        for name, make in optimizers(shapes, device).items():
            run = make()
            row = {"parameters": which, "optimizer": name, **timed(run, device, repeats), "MB": peak(run, device)}
            rows.append(row)
    return rows


def optimizers(shapes: Shapes, device: str) -> dict[str, Callable[[], Run]]:
    """Functions that take a step of each optimizer, on parameters of its own."""
    makes: dict[str, Callable[[], Run]] = {}
    for name, way in WAYS.items():
        makes[f"SGD {name}"] = lambda way=way: (
            torch.optim.SGD(parameters(shapes, device), nesterov=True, **NESTEROV, **way).step
        )
        makes[f"Adam {name}"] = lambda way=way: torch.optim.Adam(parameters(shapes, device), **ADAM, **way).step
    for name, options in OURS.items():
        makes[name] = lambda options=options: ours(parameters(shapes, device), **options)
    return makes


def criterion_rows(device: str, sizes: list[tuple[int, int]], repeats: int) -> list[dict[str, Any]]:
    """Forward and backward of each criterion."""
    losses = {
        "torch.nn.CrossEntropyLoss": nn.CrossEntropyLoss(),
        "CrossEntropy": CrossEntropy(),
        "MultiClassHinge": MultiClassHinge(),
        "MultiClassHinge(smooth=True)": MultiClassHinge(smooth=True),
    }
    rows = []
    for n, K in sizes:
        scores, target = torch.randn(n, K, device=device, requires_grad=True), torch.randint(K, (n,)).to(device)
        for name, loss in losses.items():
            run = both(loss, scores, target)
            rows.append({"scores": f"[{n}, {K}]", "loss": name, **timed(run, device, repeats), "MB": peak(run, device)})
    return rows


# A whole training step.


def training(kind: str, model: nn.Module, device: str, n: int) -> Run:
    """Forward, backward and update on one fixed batch."""
    x, y = torch.randn(n, 3, 32, 32, device=device), torch.randint(10, (n,)).to(device)
    if kind.startswith("SingleStepFW"):
        criterion: nn.Module = MultiClassHinge(smooth=True)
        given = {**NESTEROV, "lr": torch.tensor(0.1, device=device), **OURS[kind]}
        optimizer: Any = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), **given)  # type: ignore[arg-type]
    else:
        criterion, way = nn.CrossEntropyLoss(), WAYS[kind.split()[1]]
        if kind.startswith("SGD"):
            optimizer = torch.optim.SGD(model.parameters(), nesterov=True, **NESTEROV, **way)
        else:
            optimizer = torch.optim.Adam(model.parameters(), **ADAM, **way, capturable=device != "cpu")

    def run() -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return run


def replayed(run: Run) -> Run:
    """The same as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def training_rows(device: str, build: Callable[[], nn.Module], n: int, repeats: int) -> list[dict[str, Any]]:
    """A training step of each optimizer, eager and (on a GPU) as a CUDA graph."""
    rows = []
    for kind in ("SGD foreach", "SGD fused", "Adam foreach", "Adam fused", *OURS):
        torch.manual_seed(0)
        run = training(kind, build().to(device), device, n)
        rows.append({"optimizer": kind, "how": "eager", **timed(run, device, repeats, 3)})
        if device != "cpu":
            rows.append({"optimizer": kind, "how": "CUDA graph", **timed(replayed(run), device, repeats, 3)})
    return rows


# Several devices.


def _rank(rank: int, world: int, folder: str, backend: str, n: int, repeats: int) -> None:
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    else:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=world)
    rows = []
    for kind in ("SGD foreach", "SingleStepFW"):
        torch.manual_seed(0)
        model = WideResNet(10, 1).to(device)
        run = training(kind, DistributedDataParallel(model), device, n)
        rows.append({"optimizer": kind, "ranks": world, **timed(run, device, repeats, 3)})
    if rank == 0:
        torch.save(rows, f"{folder}/rows.pt")
    dist.destroy_process_group()


def ddp_rows(backend: str, world: int, n: int, repeats: int) -> list[dict[str, Any]]:
    """A training step under DDP, one rank per device."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (world, folder, backend, n, repeats), nprocs=world)  # type: ignore[no-untyped-call]
        rows: list[dict[str, Any]] = torch.load(f"{folder}/rows.pt", weights_only=False)
    return rows


def main(options: Options) -> None:
    """Measure everything, or print that there is no GPU."""
    if not torch.cuda.is_available():
        print(NO_GPU)
        return
    repeats = 5 if options.quick else 25
    note = torch.cuda.get_device_name()
    found = agreement("cuda", LISTS["WRN-40-4 (116 tensors, 8.9 M)"])
    write(options, "gpu_agreement", found, note)
    write(options, "gpu_step", step_rows("cuda", LISTS, repeats), note)
    sizes = [(128, 10), (128, 100), (128, 1000), (8192, 50_000)]
    write(options, "gpu_criterion", criterion_rows("cuda", sizes, repeats), note)
    write(options, "gpu_training_step", training_rows("cuda", lambda: WideResNet(40, 4), 128, repeats), note)
    write(options, "gpu_ddp", ddp_rows("nccl", torch.cuda.device_count(), 128, repeats), note)
