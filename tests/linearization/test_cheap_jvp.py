"""cheap_jvp: the same network, the same linearisation, and no silent second derivatives."""

import copy

import pytest
import torch
from torch import nn

from proxsvm.linearization.cheap_jvp import cheap_jvp
from proxsvm.linearization.graph import Linearization
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import CorrectiveFW, MultiStepFW
from tests.cases import PaperOptimizer as ProxOptimizer

NETS = {
    "1d": lambda: (nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), (6, 5)),
    "2d": lambda: (
        nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4),
            nn.Flatten(), nn.Linear(16, 3),
        ),
        (6, 2, 6, 6),
    ),
    "3d": lambda: (
        nn.Sequential(nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3), nn.Flatten(), nn.Linear(24, 3)),
        (6, 1, 3, 3, 3),
    ),
    "strides and groups": lambda: (
        nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4), nn.Tanh(),
            nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 1, padding="same"),
            nn.Flatten(), nn.Linear(18, 3),
        ),
        (6, 2, 6, 6),
    ),
    "no statistics": lambda: (
        nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)),
        (6, 5),
    ),
    "not affine": lambda: (nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)), (6, 5)),
    "mean of all": lambda: (nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3)), (6, 5)),
}  # fmt: skip


def pair(name):
    torch.manual_seed(0)
    net, shape = NETS[name]()
    net = net.double()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return net, cheap_jvp(copy.deepcopy(net)), torch.randn(*shape, dtype=torch.double)


@pytest.mark.parametrize("name", NETS)
def test_the_linearisation_is_the_same(name):
    plain, cheap, x = pair(name)
    s = torch.randn(6, 3, dtype=torch.double)
    d = [torch.randn_like(p) for p in plain.parameters()]
    lines = [Linearization(net(x), list(net.parameters())) for net in (plain, cheap)]
    torch.testing.assert_close(lines[0].scores, lines[1].scores)
    for reuse in (False, True):
        torch.testing.assert_close(lines[0].vjp(s, reuse), lines[1].vjp(s, reuse))
    torch.testing.assert_close(lines[0].jvp(d), lines[1].jvp(d))
    torch.testing.assert_close(lines[0].jacobian(), lines[1].jacobian())
    torch.testing.assert_close(plain.state_dict(), cheap.state_dict())  # the running statistics too
    torch.testing.assert_close(plain.eval()(x), cheap.eval()(x))


@pytest.mark.parametrize("name", ["1d", "2d", "strides and groups"])
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_autocast_has_it_too(name, inside):
    """In bfloat16 the linearisation is torch's; the passes are its own kernels, so scores and vjp are equal."""
    plain, cheap, x = (part.float() for part in pair(name))
    s = torch.randn(6, 3)
    d = [torch.randn_like(p) for p in plain.parameters()]
    exact = Linearization(plain(x), list(plain.parameters())).jvp(d)
    cheap(x)  # the same running statistics
    lines = []
    for net in (plain, cheap):
        with torch.autocast("cpu", torch.bfloat16):
            lines.append(Linearization(net(x), list(net.parameters())))
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        assert torch.equal(lines[0].scores, lines[1].scores)
        for reuse in (False, True):
            torch.testing.assert_close(lines[0].vjp(s, reuse), lines[1].vjp(s, reuse), rtol=0, atol=0)
        changes = [line.jvp(d) for line in lines]
    torch.testing.assert_close(plain.state_dict(), cheap.state_dict())
    assert changes[0].dtype == changes[1].dtype
    errors = [float((change - exact).norm() / exact.norm()) for change in changes]
    assert errors[1] < max(0.03, 1.5 * errors[0])


def test_autocast_leaves_float64_alone():
    plain, cheap, x = pair("2d")
    with torch.autocast("cpu", torch.bfloat16):
        assert cheap(x).dtype == plain(x).dtype == torch.float64


@pytest.mark.parametrize("solver", [MultiStepFW(3, tol=0.0), CorrectiveFW(3, tol=0.0)], ids=repr)
def test_it_trains_to_the_same_weights(solver):
    plain, cheap, x = pair("2d")
    y = torch.arange(6) % 3
    for net in (plain, cheap):
        loss = MultiClassHinge(smooth=True)
        optimizer = ProxOptimizer(loss, solver, net.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-3)
        for _ in range(4):
            optimizer.step(lambda net=net, loss=loss: loss(net(x), y))
    torch.testing.assert_close(plain.state_dict(), cheap.state_dict())


def test_frozen_parameters_have_no_part_in_it():
    plain, cheap, x = pair("2d")
    lines = []
    for net in (plain, cheap):
        for p in (net[0].weight, net[1].bias, net[3].weight):
            p.requires_grad_(False)
        lines.append(Linearization(net(x), [p for p in net.parameters() if p.requires_grad]))
    torch.manual_seed(1)
    d = [torch.randn_like(p) for p in lines[0].params]
    torch.testing.assert_close(lines[0].jvp(d), lines[1].jvp(d))


def test_other_second_derivatives_are_refused():
    _, cheap, x = pair("2d")
    x.requires_grad_()
    (g,) = torch.autograd.grad(cheap(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="without cheap_jvp"):
        g.square().sum().backward()


@pytest.mark.parametrize("shape", [(1, 4), (1, 4, 1), (1, 4, 1, 1), (0, 4), (0, 4, 2, 2)], ids=str)
def test_a_batch_of_one_or_none_does_what_torch_does(shape):
    norm = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    plain, cheap, x = norm(4), cheap_jvp(norm(4)), torch.randn(shape)
    for module in (plain, cheap) if shape[0] else ():
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
            module(x)
    if not shape[0]:
        assert cheap(x).shape == plain(x).shape
    torch.testing.assert_close(plain.state_dict(), cheap.state_dict())
    torch.testing.assert_close(plain.eval()(x), cheap.eval()(x))
