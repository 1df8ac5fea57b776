"""Run a function on several ranks (gloo, 127.0.0.1), within a bounded time, and return what each rank returned."""

import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2
CONTEXT = mp.get_context("forkserver")  # a rank is forked from a process that has imported what takes long
CONTEXT.set_forkserver_preload(["torch.nn.parallel", "torch.distributed.fsdp", "tests.optimizer.test_optimizer"])


def run_on_ranks(work: Callable[..., Any], *args: Any, world: int = WORLD, limit: float = 600.0) -> list[Any]:
    """``work(rank, *args)`` on every rank; raises with the traceback of the first that failed."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            CONTEXT.Process(target=_rank, args=(work, rank, world, folder, args), daemon=True) for rank in range(world)
        ]
        for process in ranks:
            process.start()
        end = time.monotonic() + limit
        for process in ranks:
            process.join(max(0.0, end - time.monotonic()))
        hanging = [rank for rank, process in enumerate(ranks) if process.is_alive()]
        for rank in hanging:
            ranks[rank].kill()
        results = []
        for rank, process in enumerate(ranks):
            file = Path(folder, f"{rank}.pt")
            results.append(torch.load(file, weights_only=False) if file.exists() else {"died": process.exitcode})
        errors = [r["error"] for r in results if isinstance(r, dict) and "error" in r]
        if errors:
            raise RuntimeError("\n".join(errors))
        assert not hanging, f"ranks {hanging} still ran after {limit} s"
        return results


def message(act: Callable[[], Any]) -> str:
    """What ``act`` raises: an assertion on a rank would leave the others waiting."""
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def run_module(name: str, *words: str, ranks: int = 0) -> str:
    """``python -m name``, or under torchrun on so many ranks; what it prints."""
    engine = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.getcwd()}
    command, pipes = [sys.executable, *engine, "-m", name, *words], dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    run = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)
    try:
        out, errors = run.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGTERM)  # torchrun ends its ranks with itself
        raise
    assert run.returncode == 0, errors[-2000:]
    return out


def _rank(work: Callable[..., Any], rank: int, world: int, folder: str, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(minutes=5),
    )
    try:
        result = work(rank, *args)
    except Exception:
        result = {"error": f"rank {rank}:\n{traceback.format_exc()}"}
    torch.save(result, Path(folder, f"{rank}.part"))
    os.replace(Path(folder, f"{rank}.part"), Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()
