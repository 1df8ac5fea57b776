"""The paper's networks have their published sizes, and take a step."""

import pytest
import torch

from experiments.lm import GPT
from experiments.models import DenseNet, SentencePairBiLSTM, WideResNet
from experiments.tasks import LANGUAGE_MODELS

SIZES = [
    (lambda: WideResNet(40, 4), 8.9e6),
    (lambda: DenseNet(40, 40), 1.9e6),
    (lambda: SentencePairBiLSTM(300, 2048, 512), 47e6),
    (lambda: GPT(*LANGUAGE_MODELS["gpt-6-384"]), 10.8e6),  # nanoGPT's
]


@pytest.mark.parametrize(("build", "published"), SIZES)
def test_published_sizes(build, published):
    with torch.device("meta"):
        size = sum(p.numel() for p in build().parameters())
    assert size == pytest.approx(published, rel=0.01)


def test_padding_does_not_change_an_encoding():
    model = SentencePairBiLSTM(5, 4, 3)
    words = torch.randn(2, 3, 5)
    padded = torch.cat([words, torch.randn(2, 4, 5)], 1)
    lengths = torch.tensor([3, 2])
    torch.testing.assert_close(model.encode(words, lengths), model.encode(padded, lengths))


@pytest.mark.parametrize("network", [WideResNet, DenseNet])
def test_an_impossible_depth_is_refused(network):
    with pytest.raises(ValueError, match="expected 6n"):
        network(12, 4)
