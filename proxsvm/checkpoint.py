"""Checkpoints that a crash cannot spoil, and that load whole or not at all."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxsvm.optimizer import ProxOptimizer


def save(path: str | os.PathLike[str], **parts: Any) -> None:
    """Save ``parts`` under their names: ``save("last.pt", model=model, optimizer=optimizer, epoch=3)``.

    A part with a ``state_dict()`` is saved as that, anything else as it is. The file is written beside ``path``, forced
    to the disk and then renamed: whenever the process dies, ``path`` is the old checkpoint or the new one, and whole.

    >>> import tempfile
    >>> model = nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/last.pt", model=model, epoch=3)
    ...     load(f"{folder}/last.pt", model=model)
    {'epoch': 3}
    """
    target = Path(path)
    states = {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in parts.items()}
    handle, written = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(states, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, target)
    except BaseException:
        Path(written).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)  # the renaming, too, must reach the disk
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: str | os.PathLike[str], **parts: Any) -> dict[str, Any]:
    """Load a checkpoint into ``parts``, and return whatever else is in it.

    Every module and every ``ProxOptimizer`` is checked before anything changes: names, shapes and dtypes. Raises
    ValueError where the checkpoint is damaged, lacks a part or does not fit.
    """
    with open(path, "rb") as file:
        try:
            states: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, OSError) as error:
            raise ValueError(f"{path} is not a checkpoint, or is damaged: {error}") from error
    if not isinstance(states, dict):
        raise ValueError(f"{path} holds a {type(states).__name__}; expected what proxsvm.checkpoint.save() wrote")
    missing = set(parts) - set(states)
    if missing:
        raise ValueError(f"{path} lacks {sorted(missing)}; it has {sorted(states)}")
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            _check_module(name, part, states[name])
        elif isinstance(part, ProxOptimizer):
            part.check_state_dict(states[name])
    for name, part in parts.items():
        part.load_state_dict(states.pop(name))
    return states


def _check_module(name: str, module: nn.Module, state: dict[str, Any]) -> None:
    own = module.state_dict()
    lacking, extra = sorted(set(own) - set(state)), sorted(set(state) - set(own))
    if lacking or extra:
        raise ValueError(f"the checkpoint's {name!r} is of another model: it lacks {lacking} and has {extra} too many")
    for key, mine in own.items():
        saved = state[key]
        if not isinstance(mine, Tensor):
            continue
        if mine.shape != saved.shape or mine.dtype != saved.dtype:
            raise ValueError(
                f"the checkpoint's {name!r} is of another model: {key} is {tuple(saved.shape)}, {saved.dtype} there "
                f"and {tuple(mine.shape)}, {mine.dtype} here"
            )
