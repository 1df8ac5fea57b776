"""The optimizers of the experiments: peers equal plain references, recipes pass what a config says."""

import copy
import doctest
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments import lm, models, optimizers, tabular
from experiments.config import Config
from experiments.optimizers import OPTIMIZERS, BPGrad, DoG, Muon, Schedule, criterion_of, recipe_of
from experiments.report import names, results, tables
from experiments.train import average

A, X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.ones(4)


def train(w, optimizer, told=False, steps=30):
    """Least squares, from zero."""
    for _ in range(steps):
        optimizer.zero_grad()
        value = ((A @ (w - X)) ** 2).sum()
        value.backward()
        optimizer.step(**({"loss": value.detach()} if told else {}))
    return w.detach()


@pytest.mark.parametrize(("mu", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.1)])
def test_bpgrad_is_its_formula(mu, decay):
    w = nn.Parameter(torch.zeros(4))
    optimizer = BPGrad([w], lr=0.01, momentum=mu, weight_decay=decay)
    train(w, optimizer, told=True)
    plain, velocity = torch.zeros(4), torch.zeros(4)
    for _ in range(30):
        f = ((A @ (plain - X)) ** 2).sum() + decay / 2 * plain.square().sum()
        g = 2 * A.T @ (A @ (plain - X)) + decay * plain
        velocity = mu * velocity - 0.01 * f * g / (g.norm() + 1e-5)
        plain = plain + velocity
    torch.testing.assert_close(w.detach(), plain)


def test_dog_is_its_formula():
    w = nn.Parameter(torch.zeros(4))
    optimizer = DoG([w], start=1e-2, weight_decay=0.1)
    train(w, optimizer)
    plain, distance, squares = torch.zeros(4), 1e-2, 0.0
    for _ in range(30):
        g = 2 * A.T @ (A @ (plain - X)) + 0.1 * plain
        distance, squares = max(distance, float(plain.norm())), squares + float(g.norm()) ** 2
        plain = plain - distance / math.sqrt(squares + 1e-8) * g
    torch.testing.assert_close(w.detach(), plain)


def test_muon_trains_hidden_matrices_and_adamw_the_rest():
    torch.manual_seed(0)
    layers = nn.Embedding(7, 4), nn.Conv1d(4, 6, 3), nn.Flatten(), nn.Linear(18, 5), nn.LayerNorm(5), nn.Linear(5, 2)
    embedding, convolution, _, hidden, norm, head = layers
    plain = copy.deepcopy(nn.ModuleList(layers))
    optimizer = Muon(nn.ModuleList(layers), lr=0.01, weight_decay=0.1)
    assert [id(p) for p in optimizer.matrices] == [id(convolution.weight), id(hidden.weight)]
    rest = [p for p in plain.parameters() if p.shape not in ((6, 4, 3), (5, 18))]
    flat = nn.Parameter(plain[1].weight.detach().flatten(1).clone())
    muon = torch.optim.Muon([flat], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest, lr=0.01, weight_decay=0.1)
    for _ in range(3):
        for p, q in zip(nn.ModuleList(layers).parameters(), plain.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        flat.grad = plain[1].weight.grad.flatten(1)
        for each in (optimizer, muon, adamw):
            each.step()
    torch.testing.assert_close(convolution.weight.flatten(1), flat)
    for ours, theirs in ((embedding, plain[0]), (norm, plain[4]), (head, plain[5])):
        torch.testing.assert_close(ours.weight, theirs.weight)


def test_nothing_set_is_passed_explicitly():
    config = Config(optimizer="dfw", lr="auto", metric="kronecker", memory=0.9, momentum=0.0, average="0.995")
    optimizer = OPTIMIZERS["dfw"].build(config, criterion_of(replace(config, loss="ce")), nn.Linear(3, 2), 10)
    assert optimizer.memory == 0.9
    assert [optimizer.param_groups[0][key] for key in ("auto", "average", "momentum")] == [True, 0.995, 0.0]


def test_a_full_step_in_the_euclidean_metric_is_sgd():
    config = Config(optimizer="dfw-full", loss="hinge", lr=3.0, momentum=0.9, weight_decay=0.01)
    models = [nn.Linear(5, 4) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x, y = torch.randn(8, 5), torch.randint(4, (8,))
    criterion = criterion_of(config)
    for model, name in zip(models, ("dfw-full", "sgd"), strict=True):
        recipe = OPTIMIZERS[name]
        optimizer = recipe.build(config, criterion, model, 10)
        for _ in range(10):
            recipe.update(optimizer, lambda: criterion(model(x), y))
    torch.testing.assert_close(models[0].weight, models[1].weight)


@pytest.mark.parametrize("options", [{"metric": "diagonal"}, {"average": "0.995"}, {"lr": "auto"}], ids=str)
def test_options_of_proxsvm_are_refused_for_others(options):
    with pytest.raises(ValueError, match=r"which adam does not have: only proxsvm has it"):
        recipe_of(Config(optimizer="adam", **options))
    assert recipe_of(Config(optimizer="dfw", **options)).proximal


def rates(schedule, epochs, steps=1):
    """The rate of every step; the validation value improves in the first two epochs."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    made, found = Schedule(Config(schedule=schedule, epochs=epochs, lr=2.0), optimizer), []
    for epoch in range(epochs):
        for step in range(steps):
            made.before_step((epoch + (step + 0.5) / steps) / epochs)
            found.append(optimizer.param_groups[0]["lr"])
        made.after_epoch(float(min(epoch, 1)))
    return found


def test_the_schedules_are_the_published_ones():
    def falls(schedule, epochs):
        found = rates(schedule, epochs)
        return {k: round(found[k] / found[k - 1], 6) for k in range(1, epochs) if found[k] != found[k - 1]}

    assert falls("wrn-paper", 200) == {60: 0.2, 120: 0.2, 180: 0.2}
    assert falls("wrn-jobs", 200) == {60: 0.2, 120: 0.2, 160: 0.2}
    assert falls("densenet", 300) == {150: 0.1, 225: 0.1}
    assert rates("snli", 4) == pytest.approx([2, 2, 2, 0.4])


def test_the_cosine_warms_up_and_falls_to_zero():
    found = rates("cosine", 2, steps=50)
    assert found[:5] == pytest.approx([0.2, 0.6, 1.0, 1.4, 1.8])
    assert found[5] == pytest.approx(2.0, abs=1e-3)
    assert found[5:] == sorted(found[5:], reverse=True)
    assert found[-1] < 1e-3


def test_the_average_is_what_it_says():
    model = nn.Linear(1, 1, bias=False)
    betas = {
        "0.5": [0.0, 2 / 11, 3 / 12, 4 / 13, 5 / 14, 6 / 15, 7 / 16, 8 / 17, 0.5, 0.5],
        "1/2": [0.0, 2 / 4, 3 / 5, 4 / 6, 5 / 7, 6 / 8],
    }
    for form, expected_betas in betas.items():
        mean, expected = average(model, form), None
        for t, beta in enumerate(expected_betas):
            model.weight.data.fill_(float(t**2))
            mean.update_parameters(model)
            expected = t**2 if expected is None else beta * expected + (1 - beta) * t**2
            assert mean.module.weight.item() == pytest.approx(expected)
    for form in ("1.0", "1/0", "0/3", "a tenth"):
        with pytest.raises(ValueError, match=r"expected a decay below 1, such as 0\.995, or the fraction of steps"):
            average(model, form)


def test_the_examples_in_the_docstrings_hold():
    for module in (optimizers, lm, tabular, models, names, results, tables):
        found = doctest.testmod(module)
        assert found.attempted > 0 == found.failed, module
