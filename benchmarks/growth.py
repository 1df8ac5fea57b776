"""Seconds per pass and memory of BlockFW on features, as the samples or the features grow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.common import Options, figure, write
from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import BlockFW, Trace

REPEATS = 5


def measure(n: int, F: int) -> dict[str, float]:
    """In a process of its own, so that the peak memory is its own, too."""
    rng = np.random.default_rng(0)

    def data(n: int, F: int) -> ProxProblem:
        y = rng.integers(10, size=n)
        x = rng.standard_normal((n, F))
        for k in range(10):
            x[y == k, : F // 10] += rng.standard_normal(F // 10)
        options: dict[str, Any] = {"lr": n * 1e-3, "weight": torch.zeros(10, F).double()}
        return ProxProblem.from_features(MultiClassHinge(), torch.as_tensor(x), torch.as_tensor(y), **options)

    def first_pass(problem: ProxProblem) -> float:
        seen: list[Trace] = []
        BlockFW(tol=0.0, max_passes=1, inner=0, compiled=True, callback=seen.append).solve(problem)
        return seen[1].seconds - seen[0].seconds

    first_pass(data(50, 20))  # compile first
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak is counted from here
    before = _peak()
    problem = data(n, F)
    seconds = min(first_pass(problem) for _ in range(REPEATS))
    return {"seconds": seconds, "megabytes": (_peak() - before) / 1024}


def _peak() -> int:
    """The peak memory of this process, in kB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def main(options: Options) -> None:
    last = 4 if options.quick else 5
    samples = [int(10 ** (3 + k / 2)) for k in range(last)]
    features = [int(10 ** (1 + k / 2)) for k in range(last + 3)]
    jobs = [("n", n, 300) for n in samples] + [("F", 1000, F) for F in features]
    rows = []
    for grows, n, F in tqdm(jobs, desc="growth"):
        call = [sys.executable, "-m", "benchmarks.growth", str(n), str(F)]
        found = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
        rows.append({"grows": grows, "n": n, "F": F, "seconds per pass": found["seconds"], "MB": found["megabytes"]})

    def slope(grows: str, what: str) -> float:
        mine = [r for r in rows if r["grows"] == grows][-5:]  # the last two orders of magnitude
        return float(np.polyfit(np.log([r[grows] for r in mine]), np.log([max(r[what], 1e-9) for r in mine]), 1)[0])

    fits = ", ".join(
        f"{what} ~ {grows}^{slope(grows, what):.2f}" for what in ("seconds per pass", "MB") for grows in ("n", "F")
    )
    note = (
        "The first pass of BlockFW on dense float64 features, over every sample and every one of the 10 "
        f"classes, and the gap after it; the fastest of {REPEATS}. MB is the growth of the process, the features "
        f"included. Fitted to the last two orders of magnitude: {fits}."
    )
    write(options, "growth", rows, note)

    def draw(fig: Any, axes: Any) -> None:
        for ax, what in zip(axes, ("seconds per pass", "MB"), strict=True):
            for grows, label in (("n", "samples n, F = 300"), ("F", "features F, n = 1,000")):
                mine = [r for r in rows if r["grows"] == grows]
                (line,) = ax.plot([r[grows] for r in mine], [r[what] for r in mine], "o-", label=label)
                x = np.array([mine[-min(len(mine), 5)][grows], mine[-1][grows]])
                ax.plot(x, mine[-1][what] * x / x[-1], "--", lw=1, color=line.get_color(), alpha=0.6)
            ax.set(xscale="log", yscale="log", xlabel="n or F", ylabel=what)
            ax.legend(title="dashed: slope 1", fontsize=8)

    figure(options, "growth", draw, ncols=2, figsize=(10, 4))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
