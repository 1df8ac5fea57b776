"""What the structured experiments share: finished runs on disk, seeds, and the likelihood of a chain."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxsvm.losses import ChainHinge
from proxsvm.losses.max_sum import log_partition, marginals


class Runs:
    """Finished runs as JSON lines; one that is already there is not run again, so a stopped experiment goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.done: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def once(self, run: Callable[[], dict[str, Any]], **config: Any) -> dict[str, Any]:
        """The results of the run with this ``config``: from disk, or by running it now."""
        for line in self.done:
            if line["config"] == config:
                print(f"already done: {config}")
                return line
        print(f"running: {config}", flush=True)
        torch.manual_seed(config.get("seed", 0))
        line = {"config": config, **run()}
        self.done.append(line)
        after = self.path.with_suffix(".tmp")
        after.write_text("".join(json.dumps(x) + "\n" for x in self.done))
        os.replace(after, self.path)  # never half a file
        return line


def arguments(description: str, name: str) -> argparse.ArgumentParser:
    """The command line that all share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where the data set lies")
    parser.add_argument("--results", type=Path, default=Path(f"experiments/results/{name}.jsonl"))
    return parser


def need(path: Path, how: str) -> Path:
    """``path``, or an error that says how to get it."""
    if not path.exists():
        raise SystemExit(f"{path} is not there. {how} Then pass its folder: --data DIR")
    return path


class ChainLikelihood(nn.Module):
    """The CRF baseline, −log p(y) = log Z − score(y), on the input of ChainHinge; its gradient is marginals − φ(y)."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = ChainHinge()

    def forward(self, scores: tuple[Tensor, ...], target: Any) -> Tensor:
        (unary, pairwise), forest = self.chain.prepare(scores, target)
        with torch.no_grad():
            node, edge = marginals(unary, pairwise, forest.parents)
            truth = self.chain.features(forest, (unary, pairwise))
            s = (node * forest.nodes[..., None] - truth[0], edge * forest.edges[..., None, None] - truth[1])
            padding = (~forest.nodes).sum(1) * torch.tensor(float(unary.shape[2])).log()  # padding is uniform
            log_z = log_partition(unary, pairwise, forest.parents) - padding
            value = log_z - (truth[0] * unary).sum((1, 2)) - (truth[1] * pairwise).sum((1, 2, 3))
        linear = (s[0] * unary).sum((1, 2)) + (s[1] * pairwise).sum((1, 2, 3))
        return (linear + (value - linear).detach()).mean()
