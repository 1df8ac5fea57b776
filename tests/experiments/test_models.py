"""The paper's networks have their published sizes, and take a step."""

import pytest
import torch

from experiments.lm import GPT
from experiments.models import DenseNet, SentencePairBiLSTM, WideResNet
from experiments.optimizers import OPTIMIZERS, criterion_of
from experiments.studies import study_of
from experiments.tasks import IMAGE_MODELS, LANGUAGE_MODELS
from tests.cases import vector

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


PAPER = {"cifar10-wrn": "wrn-40-4", "cifar10-densenet": "densenet-40-40", "snli": "bilstm-2048", "lm": "gpt-6-384"}


@pytest.mark.parametrize("name", PAPER)
def test_every_network_of_the_papers_scale_takes_a_step(name):
    """On the CPU, in float32, with two samples: as the sweep would build and update it."""
    config = next(run for run in study_of(name, "paper", "data").grid if run.loss != "ce" and not run.metric)
    assert (config.model, config.optimizer, config.device) == (PAPER[name], "dfw", "cuda")
    recipe, criterion = OPTIMIZERS[config.optimizer], criterion_of(config)
    if config.model in IMAGE_MODELS:
        network, inputs = IMAGE_MODELS[config.model](10), (torch.randn(4, 3, 32, 32),)
    elif config.model in LANGUAGE_MODELS:
        network, inputs = GPT(*LANGUAGE_MODELS[config.model]), (torch.randint(97, (2, 256)),)
    else:
        words = torch.randn(2, 6, 300), torch.randn(2, 5, 300)
        network = SentencePairBiLSTM(300, 2048, 512)
        inputs = words[0], torch.tensor([6, 3]), words[1], torch.tensor([2, 5])
    before, optimizer = vector(network), recipe.build(config, criterion, network, 10)

    def loss():
        scores = network(*inputs).flatten(0, -2)
        return criterion(scores, torch.arange(len(scores)) % 3)

    value = recipe.update(optimizer, loss)
    assert value > 0
    assert optimizer.last.gamma > 0
    assert not torch.equal(before, vector(network))


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
