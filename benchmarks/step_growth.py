"""How ``step()`` scales with the number of parameters, and with the number of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.common import Options, figure, spread, write
from benchmarks.step import ours_and_sgd

TENSORS = 100  # while the parameters grow
PARAMETERS = 100_000  # while the tensors grow


def main(options: Options) -> None:
    """Time 100 tensors with more and more parameters, and 100,000 parameters in more and more tensors."""
    sizes = [10**3, 10**4, 10**5, 10**6] if options.quick else [10**4, 10**5, 10**6, 10**7, 3 * 10**7]
    counts = [1, 10, 100] if options.quick else [1, 10, 100, 1000, 10_000]
    jobs = [("parameters", n, TENSORS) for n in sizes] + [("tensors", PARAMETERS, k) for k in counts]
    rows = []
    for grows, parameters, tensors in tqdm(jobs, desc="step_growth"):
        runs = ours_and_sgd([(parameters // tensors,)] * tensors)
        inner = max(1, min(30, 2_000_000 // max(parameters, 1000 * tensors)))
        seconds = spread(runs, repeats=5 if options.quick else 11, inner=inner, warm_up=2)
        milliseconds = {f"{name}, ms": 1e3 * median for name, (_, median, _) in seconds.items()}
        rows.append({"grows": grows, "parameters": parameters, "tensors": tensors, **milliseconds})

    def slope(grows: str, name: str) -> float:
        mine = [r for r in rows if r["grows"] == grows][-3:]
        return float(np.polyfit(np.log([r[grows] for r in mine]), np.log([r[name] for r in mine]), 1)[0])

    names = [k for k in rows[0] if k.endswith(", ms")]
    fits = "; ".join(
        f"{name[:-4]} {grows}^{slope(grows, name):.2f}" for grows in ("parameters", "tensors") for name in names
    )
    note = f"float32, Nesterov momentum and weight decay; medians. Growth over the last three sizes: {fits}."
    write(options, "step_growth", rows, note)

    def draw(_: Any, axes: Any) -> None:
        for ax, grows in zip(axes, ("parameters", "tensors"), strict=True):
            mine = [r for r in rows if r["grows"] == grows]
            for name in names:
                style = "o-" if name.startswith("Single") else "s--"
                ax.plot([r[grows] for r in mine], [r[name] for r in mine], style, label=name[:-4])
            fixed = f"{TENSORS} tensors" if grows == "parameters" else f"{PARAMETERS:,} parameters"
            ax.set(xscale="log", yscale="log", xlabel=f"{grows} ({fixed})", ylabel="milliseconds per step")
            ax.legend(fontsize=8)

    figure(options, "step_growth", draw, ncols=2, figsize=(11, 4))
