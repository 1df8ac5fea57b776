"""What the last step did, as numbers for a logger."""

from __future__ import annotations

from typing import Any


def numbers(optimizer: Any) -> dict[str, float]:
    """γ, η, γη, loss, dual, the gap where the solver knows it, and the skipped steps; nothing before the first step.

    Reading them synchronises with the device: call it where you log, and not in every step. ``optimizer`` may be
    Accelerate's wrapper.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)
    if optimizer.last is None:
        return {}
    names = ("gamma", "eta", "step_size", "loss", "dual", "gap")
    found = {name: getattr(optimizer.last, name) for name in names} | {"skipped": optimizer.skipped}
    return {f"prox/{name}": float(value) for name, value in found.items() if value is not None}
