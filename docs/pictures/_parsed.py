"""A test sentence of UD English EWT and what a finished run of the parsing study predicts for it.

PYTHONPATH=. python docs/pictures/_parsed.py out/sweeps/small/parsing/RUN --data DIR    # writes docs/images/parsed.png
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from _style import GREEN, HERE, ORANGE, plt

from experiments import config, train
from experiments.structured import parsing
from proxsvm.losses import StructuredHinge

Arcs = list[tuple[int, str]]  # the head and the relation of every word


def predicted(run: Path, data: Path) -> tuple[list[str], Arcs, Arcs]:
    """A sentence of 9 to 13 words with one or two mistakes: its words, its arcs, and those of the run."""
    given = config.from_dict(json.loads((run / "config.json").read_text())["config"])
    training = train.Training.of(replace(given, data=str(data)))
    train.resume(run, training.parts)
    decode, model = StructuredHinge(parsing.structure_of(given.loss)).decode, training.model.eval()
    split = parsing.splits(data)
    names = ["?", *sorted({relation for sentence in split["train"] for relation in sentence.relations})]
    sentences = sorted(split["test"], key=lambda s: len(s.words))
    for at, sentence in enumerate(sentences):
        if 9 <= len(sentence.words) <= 13 and sentence.words[0].istitle():
            inputs, (*_, lengths) = training.task.take(training.task.test, torch.tensor([at]), None)
            heads, kinds = (x[0].tolist() for x in decode(model(*inputs), lengths=lengths))
            truth = list(zip(sentence.heads, sentence.relations, strict=True))
            found = list(zip(heads, (names[k] for k in kinds), strict=True))
            if 0 < sum(a != b for a, b in zip(found, truth, strict=True)) < 3:
                return sentence.words, truth, found
    raise ValueError(f"{run} has no such sentence")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    words, truth, found = predicted(args.run, args.data)
    figure, axes = plt.subplots(figsize=(1.05 * len(words), 5), layout="constrained")
    for m, word in enumerate(words):
        axes.text(m, 0, word, ha="center", va="center")
    t = torch.linspace(0, torch.pi, 50)
    for side, tree, marker in ((1, truth, "v"), (-1, found, "^")):
        for m, (head, name) in enumerate(tree):
            color = GREEN if (head, name) == truth[m] else ORANGE
            start, top = (m, 2.5) if head == 0 else (head - 1, 0.3 + 0.4 * abs(head - 1 - m) ** 0.75)
            height = (t / 2 if head == 0 else t).sin()
            axes.plot(
                start + (m - start) * (1 - t.cos()) / 2, side * (0.25 + (top - 0.25) * height), color=color, lw=1.2
            )
            axes.plot(m, 0.25 * side, marker, color=color, ms=5)
            axes.text((start + m) / 2, side * (top + 0.1), name, color=color, ha="center", va="center", fontsize=8)
    axes.axis("off")
    figure.savefig(HERE.parent / "images" / "parsed.png", dpi=110, facecolor="white")


if __name__ == "__main__":
    main()
