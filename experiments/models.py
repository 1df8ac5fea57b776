"""The networks of the paper's experiments, and small members of their families.

WideResNet(40, 4), 8.9 M parameters: Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016.
DenseNet(40, 40), 1.9 M, with bottlenecks and compression 1/2: Huang et al., Densely Connected Convolutional Networks,
CVPR 2017.
SentencePairBiLSTM(300, 2048, 512), 47 M: Conneau et al., Supervised Learning of Universal Sentence Representations from
Natural Language Inference Data, EMNLP 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Residual(nn.Module):
    """BN-ReLU-conv-BN-ReLU-conv, added to its input (to its activated projection where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True))
        first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.body = nn.Sequential(first, *_activated(outputs, outputs, 3))
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.before(x)
        return self.body(active) + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Sequential):
    """WRN-``depth``-``width`` for 32×32 images; depth = 6n + 4.

    >>> WideResNet(10, 1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, depth: int, width: int, classes: int = 10) -> None:
        blocks = _blocks(depth)
        channels = [16, 16 * width, 32 * width, 64 * width]
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
        for stage in range(3):
            inputs, outputs = channels[stage : stage + 2]
            for k in range(blocks):
                layers.append(_Residual(inputs if k == 0 else outputs, outputs, 2 if k == 0 and stage else 1))
        super().__init__(*layers, *_head(channels[-1], classes))
        self.apply(_initialise)


class _Dense(nn.Module):
    """Bottleneck layer: its ``growth`` new channels are concatenated with its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_activated(inputs, 4 * growth, 1), *_activated(4 * growth, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


class DenseNet(nn.Sequential):
    """DenseNet-BC of ``depth`` layers and ``growth`` channels each, for 32×32 images; depth = 6n + 4.

    >>> DenseNet(10, 4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, depth: int, growth: int, classes: int = 10) -> None:
        blocks, channels = _blocks(depth), 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        for stage in range(3):
            for _ in range(blocks):
                layers.append(_Dense(channels, growth))
                channels += growth
            if stage < 2:
                layers += [*_activated(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
        super().__init__(*layers, *_head(channels, classes))
        self.apply(_initialise)


class SentencePairBiLSTM(nn.Module):
    """A BiLSTM with max pooling encodes both sentences u, v; three linear layers read (u, v, |u − v|, u·v).

    Inputs: embedded words of both sentences, ``[n, T, embedding]`` each, padded with zeros, and their lengths ``[n]``.

    >>> model = SentencePairBiLSTM(5, 4, 3)
    >>> model(torch.randn(2, 6, 5), torch.tensor([6, 3]), torch.randn(2, 4, 5), torch.tensor([2, 4])).shape
    torch.Size([2, 3])
    """

    def __init__(self, embedding: int, hidden: int, layer: int, classes: int = 3) -> None:
        super().__init__()
        self.lstm = nn.LSTM(embedding, hidden, bidirectional=True, batch_first=True)
        self.classifier = nn.Sequential(
            nn.Linear(8 * hidden, layer), nn.Linear(layer, layer), nn.Linear(layer, classes)
        )

    def encode(self, words: Tensor, lengths: Tensor) -> Tensor:
        """The largest state of each unit over the sentence, ``[n, 2·hidden]``.

        In float32: oneDNN has no bfloat16 LSTM for CPUs without AVX-512.
        """
        packed = nn.utils.rnn.pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        with torch.autocast(words.device.type, enabled=False):
            output, _ = self.lstm(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, padding_value=-torch.inf)
        return states.max(1).values

    def forward(self, first: Tensor, first_lengths: Tensor, second: Tensor, second_lengths: Tensor) -> Tensor:
        u, v = self.encode(first, first_lengths), self.encode(second, second_lengths)
        return self.classifier(torch.cat([u, v, (u - v).abs(), u * v], 1))


def _blocks(depth: int) -> int:
    """In each of the three stages of a network."""
    if (depth - 4) % 6:
        raise ValueError(f"depth is {depth}; expected 6n + 4, such as 10, 16, 22, 28 or 40")
    return (depth - 4) // 6


def _activated(inputs: int, outputs: int, size: int) -> list[nn.Module]:
    """BN-ReLU-conv."""
    convolution = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    return [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), convolution]


def _head(channels: int, classes: int) -> list[nn.Module]:
    pooled = [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return [*pooled, nn.Linear(channels, classes)]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
