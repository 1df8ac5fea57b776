"""What γ contributes on the structured tasks: γ exact and γ ≡ 1, one and three inner steps, averages on and off.

    python -m experiments.structured.ablation ocr-large --data DIR      # chunking, camvid

The settings are those of the other tasks (``ablated`` in ``experiments/studies.py``), with the hinge and the
likelihood. In the Euclidean metric η starts where it does in ``tuned``, which depends on the scale of the loss, and
grows by decades. Validation only. Results: experiments/results/small/ablation-TASK.jsonl, in the form of a sweep's.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.config import Config
from experiments.structured.study import run
from experiments.structured.tuned import Task
from experiments.studies import AVERAGE, ablated


def settings(task: Task, base: Config) -> tuple[Config, ...]:
    """The runs of both losses."""
    etas = {loss: (task.etas[loss], 10 * task.etas[loss], 100 * task.etas[loss]) for loss in ("hinge", "likelihood")}
    return ablated(replace(base, averages=AVERAGE), etas)


def main() -> None:
    run("ablation", "Structured tasks, with the exact γ and with γ ≡ 1", settings, seeds=[0], test=False)


if __name__ == "__main__":
    main()
