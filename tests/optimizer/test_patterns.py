"""What public training scripts do around an optimizer: each pattern against γ and the step written out by hand."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from proxsvm import ProxOptimizer
from proxsvm.losses import BinaryCrossEntropy, CrossEntropy, MultiClassHinge, SquaredError
from proxsvm.solvers import SingleStepFW

ETA, STEPS = 5.0, 12  # an η that γ has to correct
pytestmark = pytest.mark.parametrize("fused", [None, False], ids=["compiled", "torch"])


def network(width: int = 8, out: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, out)).double()


def batches(count: int = STEPS, n: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, n, 4, generator=generator, dtype=torch.float64)
    return list(zip(x, x[..., :3].argmax(-1), strict=True))


def optimizer_of(loss, params, fused, **options):
    return ProxOptimizer(loss, SingleStepFW(), params, lr=ETA, fused=fused, **options)


def by_hand(params: list[Tensor], value: Tensor) -> float:
    """w ← w − γη g with γ = min(1, value / (η ‖g‖²)); returns γ. ``value`` is everything that is differentiated."""
    grads = torch.autograd.grad(value, params, allow_unused=True)
    grads = [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
    squared = sum(float((g * g).sum()) for g in grads)
    gamma = min(1.0, float(value.detach()) / (ETA * squared)) if squared else 0.0
    with torch.no_grad():
        for p, g in zip(params, grads, strict=True):
            p -= gamma * ETA * g
    return gamma


def assert_same(model: nn.Module, twin: nn.Module) -> None:
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-10)


def test_accumulation_with_a_penalty(fused):
    """nanoGPT's micro-batches, and a penalty that the script adds to each: declared, or passed as the sum."""

    class Ridge(nn.Module):
        def forward(self, model):
            return 1e-2 * sum((p * p).sum() for p in model.parameters())

    model, twin = network(), network()
    criterion = CrossEntropy()
    optimizer = optimizer_of(criterion, model.parameters(), fused)
    ridge = optimizer.watch(Ridge())
    gammas = []
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part, labels in zip(x.split(2), y.split(2), strict=True):
            term = ridge(model) if step % 2 else Ridge()(model)
            loss = (criterion(model(part), labels) + term) / 3
            loss.backward()
            total += float(loss.detach())
        optimizer.step() if step % 2 else optimizer.step(loss=total)
        gammas.append(by_hand(list(twin.parameters()), F.cross_entropy(twin(x), y) + Ridge()(twin)))
        assert float(optimizer.last.gamma) == pytest.approx(gammas[-1], abs=1e-10)
    assert_same(model, twin)
    assert min(gammas) < 1  # else any value would have done


def test_clipping_by_the_trainer_is_noticed_and_max_grad_norm_does_it(fused):
    x, y = batches()[0]
    model = network()
    optimizer = optimizer_of(criterion := CrossEntropy(), model.parameters(), fused)
    criterion(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 1e-2)
    with pytest.warns(UserWarning, match="max_grad_norm"):
        optimizer.step()
    model, twin = network(), network()
    optimizer = optimizer_of(criterion, model.parameters(), fused, max_grad_norm=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y in batches():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            value = F.cross_entropy(twin(x), y)
            norm = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(twin.parameters()))]).norm()
            c = min(1.0, 1e-2 / float(norm))
            gamma = min(c, float(value.detach()) / (ETA * float(norm) ** 2))
            grads = torch.autograd.grad(F.cross_entropy(twin(x), y), list(twin.parameters()))
            with torch.no_grad():
                for p, g in zip(twin.parameters(), grads, strict=True):
                    p -= ETA * gamma * g
    assert_same(model, twin)


def test_alternation_as_in_a_gan(fused):
    """The discriminator on real and detached fake samples, the generator through it; one criterion for both."""
    generator, judge = network(out=4), network(out=1)
    twins = copy.deepcopy((generator, judge))
    criterion = BinaryCrossEntropy()
    of_g, of_d = (optimizer_of(criterion, m.parameters(), fused) for m in (generator, judge))

    def bce(scores: Tensor, label: float) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))

    for real, _ in batches():
        noise = real.flip(0)
        fake = generator(noise)
        of_d.zero_grad()
        criterion(judge(real), torch.ones(len(real), 1)).backward()
        criterion(judge(fake.detach()), torch.zeros(len(real), 1)).backward()
        of_d.step()
        of_g.zero_grad()
        criterion(judge(fake), torch.ones(len(real), 1)).backward()  # leaves gradients in the judge, too
        of_g.step()
        g, d = twins
        gammas = [by_hand(list(d.parameters()), bce(d(real), 1.0) + bce(d(g(noise).detach()), 0.0))]
        gammas.append(by_hand(list(g.parameters()), bce(d(g(noise)), 1.0)))
        found = [float(o.last.gamma) for o in (of_d, of_g)]
        assert found == pytest.approx(gammas, abs=1e-10)
    assert_same(generator, twins[0])
    assert_same(judge, twins[1])


def test_a_teacher_that_is_an_average(fused):
    """Mean teacher: the consistency term is a second criterion, the teacher is moved by hand and never trained."""
    student, criterion, consistency = network(), CrossEntropy(), SquaredError()
    teacher, twin = copy.deepcopy(student).requires_grad_(False), copy.deepcopy(student)
    optimizer = optimizer_of(criterion, student.parameters(), fused)
    optimizer.watch(consistency)
    twin_teacher = copy.deepcopy(teacher)
    for x, y in batches():
        optimizer.zero_grad()
        scores = student(x)
        (criterion(scores, y) + consistency(scores, teacher(x + 0.1))).backward()
        optimizer.step()
        scores = twin(x)
        gap = SquaredError()(scores, twin_teacher(x + 0.1))
        gamma = by_hand(list(twin.parameters()), F.cross_entropy(scores, y) + gap)
        assert float(optimizer.last.gamma) == pytest.approx(gamma, abs=1e-10)
        for of, by in ((teacher, student), (twin_teacher, twin)):
            for p, q in zip(of.parameters(), by.parameters(), strict=True):
                p.lerp_(q.detach(), 0.1)
    assert_same(student, twin)


@pytest.mark.parametrize("how", ["left out", "given and frozen", "frozen later"])
def test_a_frozen_backbone(how, fused):
    model, criterion = network(), MultiClassHinge(smooth=True)
    twin, before = copy.deepcopy(model), copy.deepcopy(model[0])
    if how != "frozen later":
        model[0].requires_grad_(False)
    params = model[2].parameters() if how == "left out" else model.parameters()
    optimizer = optimizer_of(criterion, params, fused, momentum=0.0)
    model[0].requires_grad_(False)
    for x, y in batches():
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        by_hand(list(twin[2].parameters()), MultiClassHinge(smooth=True)(twin(x), y))
    assert_same(model, twin)
    assert_same(model[0], before)
    assert all(p not in optimizer.state for p in model[0].parameters())


def test_lora(fused):
    """A low-rank addition to a frozen matrix, B = 0 at first: its gradient of A is 0 in the first step."""

    class Lora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.base = nn.Linear(4, 3).double().requires_grad_(False)
            self.A = nn.Parameter(torch.randn(2, 4, dtype=torch.float64))
            self.B = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + x @ self.A.T @ self.B.T

    model, criterion = Lora(), CrossEntropy()
    twin = copy.deepcopy(model)
    optimizer = optimizer_of(criterion, (p for p in model.parameters() if p.requires_grad), fused)
    x, y = batches()[0]
    first = criterion(model(x), y).detach()
    for x, y in batches() * 3:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        by_hand([twin.A, twin.B], F.cross_entropy(twin(x), y))
    assert_same(model, twin)
    x, y = batches()[0]
    assert criterion(model(x), y) < first


def test_tied_weights(fused):
    """An embedding that is the output matrix, too: one parameter, one gradient, the value once."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.embed = nn.Embedding(7, 5).double()
            self.out = nn.Linear(5, 7, bias=False).double()
            self.out.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.embed(tokens).tanh()).movedim(-1, 1)

    model, criterion = Tied(), CrossEntropy()
    twin = copy.deepcopy(model)
    optimizer = optimizer_of(criterion, model.parameters(), fused)
    generator = torch.Generator().manual_seed(4)
    for _ in range(STEPS):
        tokens = torch.randint(7, (3, 6), generator=generator)
        optimizer.zero_grad()
        criterion(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()
        gamma = by_hand([twin.embed.weight], F.cross_entropy(twin(tokens[:, :-1]), tokens[:, 1:]))
        assert float(optimizer.last.gamma) == pytest.approx(gamma, abs=1e-10)
    assert_same(model, twin)
    assert model.out.weight is model.embed.weight
