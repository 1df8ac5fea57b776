"""Those who build optimizers by a convention, ``factory(params, **options)``: skorch; LightningCLI."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from proxsvm.losses import CrossEntropy
from proxsvm.solvers import SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.cases import vector
from tests.optimizer.test_optimizer import train


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 4, generator=generator)
    return x, x[:, :3].argmax(1)


def by_hand(batches: Any, epochs: int, **options: Any) -> torch.Tensor:
    """The weights after plain training with ``ProxOptimizer(loss, solver, params)``."""
    model, criterion = network(), CrossEntropy()
    optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), **options)
    for _ in range(epochs):
        train(optimizer, model, batches)
    return vector(model)


def skorch_net(criterion: CrossEntropy, **options: Any) -> Any:
    """As in docs/faq.md: the loss is the optimizer's own, which the copies of sklearn.clone have, too."""
    skorch = pytest.importorskip("skorch")

    class Classifier(skorch.NeuralNetClassifier):  # type: ignore[misc]
        def get_loss(self, y_pred: Any, y_true: Any, *args: Any, **kwargs: Any) -> Any:
            return self.optimizer_.loss(y_pred, y_true)

    options = {"max_epochs": 5, "batch_size": 16, "train_split": None, "verbose": 0, "lr": 0.3, **options}
    factory = partial(ProxOptimizer, criterion, SingleStepFW())
    return Classifier(network(), criterion=criterion, optimizer=factory, optimizer__momentum=0.9, **options)


def test_skorch():
    x, y = data()
    net = skorch_net(CrossEntropy())
    net.fit(x.numpy(), y.numpy())
    expected = by_hand(list(zip(x.split(16), y.split(16), strict=True)), 5, lr=0.3, momentum=0.9)
    assert torch.equal(vector(net.module_), expected)
    assert np.mean(net.predict(x.numpy()) == y.numpy()) > 0.8


def test_skorch_in_a_search_of_sklearn():
    from sklearn.model_selection import GridSearchCV, cross_val_score

    x, y = (t.numpy() for t in data())
    assert cross_val_score(skorch_net(CrossEntropy()), x, y, cv=2).mean() > 0.5
    search = GridSearchCV(skorch_net(CrossEntropy()), {"lr": [1e-6, 0.3]}, cv=2).fit(x, y)
    assert search.best_params_ == {"lr": 0.3}


def test_a_criterion_that_sklearn_has_cloned_is_named():
    skorch = pytest.importorskip("skorch")
    from sklearn.base import clone

    x, y = data()
    criterion = CrossEntropy()
    factory = partial(ProxOptimizer, criterion, SingleStepFW())
    net = clone(skorch.NeuralNetClassifier(network(), criterion=criterion, optimizer=factory, verbose=0))
    with pytest.raises(RuntimeError, match=r"sklearn\.clone and skorch make one, is not"):
        net.fit(x.numpy(), y.numpy())
