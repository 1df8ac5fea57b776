"""What torch and other libraries test of every optimizer, in our own words.

After the patterns of torch's test_optim.py and common_optimizers.py (groups, hooks, layouts, forloop against foreach).
"""

import pytest
import torch
from torch import nn

from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Euclidean
from proxsvm.solvers import SingleStepFW
from tests.cases import K
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer.test_optimizer import batches, train


def trained(model, params, steps, **options):
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), params, **options)
    train(optimizer, model, batches(steps, n=8))
    return optimizer


def test_duplicated_and_empty_parameters_are_refused():
    p = nn.Parameter(torch.zeros(2))
    for params, error, match in (
        ([{"params": [p]}, {"params": [p]}], ValueError, "more than one parameter group"),
        ([], ValueError, "empty parameter list"),
        ([2 * p], ValueError, "non-leaf"),
        ([{"params": {p}}], TypeError, "ordered"),
        (p, TypeError, "iterable"),
    ):
        with pytest.raises(error, match=match):
            ProxOptimizer(MultiClassHinge(), SingleStepFW(), params)


def test_every_hook_of_the_base_class_runs():
    model, calls = nn.Linear(5, K), []
    optimizer = trained(model, model.named_parameters(), 1, lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: calls.append("step-pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("step-post"))
    optimizer.register_state_dict_pre_hook(lambda *_: calls.append("save-pre"))
    optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("load-post"))
    optimizer.step(lambda: optimizer.loss(model(torch.ones(2, 5)), torch.tensor([0, 1])))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["step-pre", "step-post", "save-pre", "load-post"]


OPTIONS = {"lr": 3.0, "momentum": 0.5, "weight_decay": 0.01, "metric": Euclidean()}


def test_how_the_parameters_are_cut_does_not_matter():
    """One matrix, its rows as many parameters, one group or many: the same trajectory."""
    results, start = [], torch.randn(K, 5)
    for rows, groups in ((K, False), (1, False), (2, True)):
        params = [nn.Parameter(part.clone()) for part in start.split(rows)]
        given = [{"params": [p]} for p in params] if groups else params
        trained(lambda x: x @ torch.cat(params).T, given, 20, **OPTIONS)
        results.append(torch.cat(params).detach())
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("layout", ["transposed", "strided", "channels_last", "scalar", "empty"])
def test_parameters_of_any_layout(layout):
    """torch's noncontiguous cases: the same numbers."""
    torch.manual_seed(0)
    base = torch.randn(K, 5)
    extra = {"scalar": torch.zeros(()), "empty": torch.zeros(0, 3)}.get(layout)
    held = {
        "transposed": base.T.contiguous().T,
        "strided": torch.randn(K, 10)[:, ::2].copy_(base),
        "channels_last": base[:, :, None, None].contiguous(memory_format=torch.channels_last),
    }.get(layout, base.clone())
    results = []
    for w in (nn.Parameter(base.clone()), nn.Parameter(held)):
        params = [w] if extra is None else [w, nn.Parameter(extra.clone())]
        trained(lambda x: x @ w.reshape(K, 5).T + sum(p.sum() for p in params[1:]), params, 5, **OPTIONS)
        results.append(w.detach().reshape(K, 5))
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)
