"""What the benchmarks share: timing in turn, tables, runs that continue after an interruption, fresh processes."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from pandas import DataFrame
from torch.utils.benchmark import Measurement, TaskSpec


@dataclass(frozen=True)
class Options:
    """``quick``: a smaller variant; ``out``: where results go; ``data``: the folder of the data sets."""

    quick: bool = False
    out: Path = Path("out/bench")
    repeats: int = 0
    data: Path = Path("data")

    def rounds(self, full: int, quick: int) -> int:
        """``--repeats``, or how often a benchmark repeats its timings by itself."""
        return self.repeats or (quick if self.quick else full)


def interleaved(
    runs: Mapping[str, Callable[[], Any]], rounds: int, inner: int = 1, warm_up: int = 0, clock: Any = time.perf_counter
) -> dict[str, Measurement]:
    """Seconds of each run (the mean of ``inner`` calls), measured in turn: noise of the machine meets all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round in range(warm_up + rounds):
        for name, run in runs.items():
            began = clock()
            for _ in range(inner):
                run()
            if round >= warm_up:
                seconds[name].append(clock() - began)
    return {name: Measurement(inner, times, TaskSpec(stmt=name, setup="")) for name, times in seconds.items()}


def ratio(times: Mapping[str, Measurement], name: str, reference: str) -> float:
    """The median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(times[name].times, times[reference].times, strict=True))


def write(options: Options, name: str, rows: Iterable[Mapping[str, Any]] | DataFrame, note: str = "") -> None:
    """Print ``rows`` as a Markdown table and keep them as ``name.md`` and ``name.json``."""
    options.out.mkdir(parents=True, exist_ok=True)
    frame, chip = DataFrame(rows), platform.processor() or platform.machine()
    machine = f"{chip}, {os.cpu_count()} cores, torch {torch.__version__}, threads: {torch.get_num_threads()}"
    text = f"## {name}\n\n{note}\n\n{table(frame)}\n\n({machine})\n"
    print(text)
    (options.out / f"{name}.md").write_text(text)
    found = {"note": note, "machine": machine, "rows": frame.to_dict("records")}
    (options.out / f"{name}.json").write_text(json.dumps(found, indent=1))


def table(frame: DataFrame) -> str:
    texts = frame.map(lambda x: f"{x:{'.3g' if abs(x) < 1000 else '.0f'}}" if isinstance(x, float) else str(x))
    return str(texts.replace("nan", "–").to_markdown(index=False, disable_numparse=True))


def kept(file: Path, key: str, work: Callable[[], Any]) -> Any:
    """``work()``, which ``file`` keeps under ``key`` for a run after an interruption."""
    found = json.loads(file.read_text()) if file.exists() else {}
    if key not in found:
        found[key] = work()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found))
    return found[key]


def in_processes(work: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    """``work`` of each of the arguments, all at once, each in a fresh process."""
    with ProcessPoolExecutor(len(arguments), get_context("spawn")) as processes:
        return list(processes.map(work, arguments))
