"""What the optimizers keep and what a step allocates, in copies of the parameters, from torch's profiler."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.common import Options, write
from benchmarks.step import LISTS, OURS, ours, torchs


def allocated(run: Callable[[], Any]) -> tuple[int, int]:
    """Bytes on the CPU that ``run`` allocates: the peak above the start, and what is still held at the end.

    >>> import torch
    >>> def run():
    ...     run.kept = torch.ones(1000) + torch.ones(1000)        # three tensors of 4,000 bytes, one of them kept
    >>> allocated(run)
    (12000, 4000)
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
        events = [e for e in json.loads(file.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    held = list(accumulate((e["args"]["Bytes"] for e in sorted(events, key=lambda e: e["ts"])), initial=0))
    return max(held), held[-1]


def main(options: Options) -> None:
    rows = []
    for which, shapes in LISTS.items():
        runs = torchs(shapes) | {name: ours(shapes, **given) for name, given in OURS.items()}
        size = sum(4 * math.prod(shape) for shape in shapes)
        for name, step in runs.items():
            _, kept = allocated(step)
            step()
            peak, left = allocated(step)
            copies = {"kept, copies": kept / size, "a step's own, copies": (peak - max(left, 0)) / size}
            rows.append({"parameters": which, "optimizer": name, **copies})
    write(options, "memory", rows, "Bytes requested of torch's CPU allocator, in units of all parameters; momentum.")
