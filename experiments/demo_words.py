"""The demo's structured task: words of handwritten digits under heavy noise, and a loss that reads whole words.

In every word the digit d is followed by 2d or 2d + 1 (mod 10). The model is not told: it learns a score for each pair
of digits along with the digits themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from proxsvm.losses import StructuredHinge

LENGTH = 12
NOISE = 1.1  # standard deviation, on pixels from -1 to 1


class WordHinge(StructuredHinge):
    """The structured hinge over words: Δ = number of wrong letters, decoded by Viterbi's algorithm.

        score(w) = Σ_t letters[t, w_t] + Σ_t pairs[w_t, w_{t+1}]

    Scores: letters ``[n, T, K]`` and pairs ``[n, K, K]``. Words: ``[n, T]``.
    """

    def features(self, word: Tensor, scores: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        letters = F.one_hot(word, scores[0].shape[2]).to(scores[0])
        return letters, letters[:, :-1].mT @ letters[:, 1:]  # which letters, and how often each pair

    def cost(self, word: Tensor, target: Tensor) -> Tensor:
        return (word != target).sum(1)

    def decode(self, scores: tuple[Tensor, Tensor], target: Tensor | None = None) -> Tensor:
        letters, pairs = scores
        if target is not None:  # Δ is a sum over letters: add it to their scores
            letters = letters + 1 - F.one_hot(target, letters.shape[2])
        best, origins = letters[:, 0], []
        for letter in letters.unbind(1)[1:]:
            value, origin = (best[:, :, None] + pairs).max(1)  # the best way to reach each letter, and from which
            best = value + letter
            origins.append(origin)
        word = [best.argmax(1, keepdim=True)]
        for origin in reversed(origins):
            word.append(origin.gather(1, word[-1]))
        return torch.cat(word[::-1], 1)


class Reader(nn.Module):
    """Scores for :class:`WordHinge`: a network that sees one letter at a time, and a table of pairs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.pairs = nn.Parameter(torch.zeros(10, 10))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.network(x), self.pairs.expand(len(x), 10, 10)


def words(images: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` words, each letter a random image of its digit, with noise: ``[count, T, 64]`` and ``[count, T]``."""
    letters = [torch.randint(10, (count,), generator=generator)]
    while len(letters) < LENGTH:
        letters.append((2 * letters[-1] + torch.randint(2, (count,), generator=generator)) % 10)
    word = torch.stack(letters, 1)
    x = torch.empty(count, LENGTH, images.shape[1])
    for digit in range(10):
        here, of_digit = word == digit, images[labels == digit]
        x[here] = of_digit[torch.randint(len(of_digit), (int(here.sum()),), generator=generator)]
    return x + NOISE * torch.randn(x.shape, generator=generator), word
