"""A language model of characters: the sentences of SNLI as one text, and a small GPT over windows of it.

The text of a split is each different sentence of its pairs, in the order of the official file, one per line. The
official splits share no premise, so neither do the texts. Validation and test are in nats per character.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments import snli

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # printable ASCII
UNKNOWN = len(CHARACTERS)
VOCABULARY = UNKNOWN + 1


@dataclass(frozen=True)
class Text:
    """Character ids ``[N]``, read in windows of ``context`` characters and the one that follows each of them."""

    ids: Tensor
    context: int

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.context


def encode(text: str) -> Tensor:
    """Ids of the characters.

    >>> encode("\\n é").tolist() == [0, 1, UNKNOWN]
    True
    """
    index = {character: at for at, character in enumerate(CHARACTERS)}
    return torch.tensor([index.get(character, UNKNOWN) for character in text], dtype=torch.uint8)


def read(file: Path) -> str:
    """The different sentences of a file of pairs, one per line."""
    first, second, _ = snli.read_sentences(file)
    pairs = zip(first, second, strict=True)
    return "\n".join(dict.fromkeys(sentence for pair in pairs for sentence in pair)) + "\n"


def load(data: Path, context: int, windows: int | None, held: int | None) -> tuple[Text, Text, Text]:
    """Training, validation (the first ``held`` windows of the official dev) and test text.

    Of the training text the first ``windows`` are used (None: all).
    """
    files = [data / "snli_1.0" / f"snli_1.0_{name}.jsonl" for name in ("train", "dev", "test")]
    texts = [encode(read(file)) for file in files]
    for file, ids in zip(files, texts, strict=True):
        if len(ids) <= context:
            raise ValueError(f"{file} has {len(ids)} characters; expected at least {context + 1}, the context")
    ends = (count and count * context + 1 for count in (windows, held, None))
    train, val, test = (Text(ids[:end], context) for ids, end in zip(texts, ends, strict=True))
    return train, val, test


def take(text: Text, index: Tensor, generator: torch.Generator | None) -> tuple[tuple[Tensor], Tensor]:
    """Windows ``[n, context]`` and their targets, the same one character later; shifted at random when training."""
    start = index * text.context
    if generator is not None:
        start = start + torch.randint(text.context, start.shape, generator=generator)
    start = start.clamp(max=len(text.ids) - 1 - text.context)
    window = text.ids[start[:, None] + torch.arange(text.context + 1)].long()
    return (window[:, :-1],), window[:, 1:]


def nats(scores: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy per character of each window, ``[n]``."""
    return F.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)


class Block(nn.Module):
    """Causal self-attention and an MLP, each added to its normalised input.

    The attention is written out: fused kernels have no double backward, which multi-step solvers need.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, length, width = x.shape
        shape = n, length, self.heads, width // self.heads
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm(x)).split(width, 2))
        weights = (q @ k.transpose(2, 3) * shape[3] ** -0.5).masked_fill(mask, -torch.inf).softmax(3)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Scores ``[n, T, vocabulary]`` of the next character at each of T ≤ ``context`` characters ``[n, T]``.

    As GPT-2 (Radford et al., 2019): layer norms first, weights drawn with standard deviation 0.02, or on residual paths
    0.02 / √(2 layers).

    >>> GPT(1, 2, 8, 16)(torch.zeros(3, 16, dtype=torch.long)).shape == (3, 16, VOCABULARY)
    True
    """

    mask: Tensor

    def __init__(self, layers: int, heads: int, width: int, context: int, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        self.register_buffer("mask", torch.ones(context, context, dtype=torch.bool).triu(1), persistent=False)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif weight.dim() > 1:
                onto_residual = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5 if onto_residual else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.characters(ids) + self.positions.weight[:length]
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        return self.head(self.norm(x))
