"""The small conv net that three of the pictures share, and the digits as it wants them."""

from __future__ import annotations

from torch import Tensor, nn

from experiments import demo


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 8, 3, padding=1, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The demo's digits as images ``[n, 1, 8, 8]``: 1,297 to train on, 500 to test."""
    x, y, x_test, y_test = demo.digits()
    return x.view(-1, 1, 8, 8), y, x_test.view(-1, 1, 8, 8), y_test
