"""Automatic η: the distance covered so far over the gradients so far."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FIRST_DISTANCE = 1e-3  # the first r̄, as a fraction of ‖w_0‖
FIRST_DISTANCE_WITH_MEMORY = 0.1  # γ knows the velocity, and guards the first steps


class History(NamedTuple):
    """r̄, the largest distance from w_0 so far (negative before the first step), and G, the sum of ‖g‖²: 0-dim."""

    max_distance: Tensor
    squares: Tensor


def distance_over_gradients(
    history: History, *, start: Tensor, distance: Tensor, gradient: Tensor, first: float = FIRST_DISTANCE
) -> tuple[Tensor, History]:
    """η_t = r̄_t / √G_t in the metric M of each step, and the history after it.

        r̄_t = max(first · ‖w_0‖_M, max_k ‖w_k − w_0‖_M),        G_t = Σ_k ⟨g_k, M_k⁻¹ g_k⟩

    Args:
        history: r̄ and G of the earlier steps.
        start: ‖w‖², which is ‖w_0‖² in the first step.
        distance: ‖w − w_0‖².
        gradient: ⟨g, M⁻¹g⟩.
        first: the first r̄, as a fraction of ‖w_0‖, or of 1 where that is 0.

    Reference: Ivgi, Hinder and Carmon, DoG is SGD's Best Friend, ICML 2023; here in a metric, with γ below it.

    >>> new = History(torch.tensor(-1.0), torch.tensor(0.0))
    >>> eta, new = distance_over_gradients(
    ...     new, start=torch.tensor(100.0), distance=torch.tensor(0.0), gradient=torch.tensor(4.0))
    >>> eta, new.max_distance, new.squares                             # 1e-3 · 10 / 2
    (tensor(0.0050), tensor(0.0100), tensor(4.))
    """
    then = history.max_distance
    start, distance, gradient = (x.to(then) for x in (start, distance, gradient))
    begin = torch.where(then < 0, first * torch.where(start > 0, start.sqrt(), 1.0), then)
    far, squares = torch.maximum(begin, distance.sqrt()), history.squares + gradient
    return torch.where(squares > 0, far / squares.sqrt(), squares), History(far, squares)
