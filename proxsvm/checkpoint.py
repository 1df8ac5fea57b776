"""Checkpoints that a crash cannot corrupt, and that load completely or not at all."""

from __future__ import annotations

import copy
import glob
import hashlib
import io
import os
import secrets
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

ABANDONED = 60  # seconds after which a temporary file that nobody writes to is that of a killed process


def save(path: str | os.PathLike[str], **parts: Any) -> None:
    """Save ``parts`` under their names: ``save("last.pt", model=model, optimizer=optimizer, epoch=3)``.

    A part with a ``state_dict()`` is saved as that. A temporary file is written beside ``path``, flushed to disk and
    renamed: if the process dies or the disk is full, ``path`` is still a complete checkpoint, the old one or the new.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/last.pt", model=(model := nn.Linear(2, 1)), epoch=3)
    ...     load(f"{folder}/last.pt", model=model)
    {'epoch': 3}
    """
    target, buffer = Path(path).resolve(), io.BytesIO()
    try:
        torch.save({name: p.state_dict() if hasattr(p, "state_dict") else p for name, p in parts.items()}, buffer)
        torch.load(io.BytesIO(data := buffer.getvalue()), map_location="cpu", weights_only=True)
    except Exception as error:
        raise TypeError(
            f"cannot save {', '.join(parts)}: one is, or contains, what torch.load(weights_only=True) refuses. Save "
            "numbers, strings, tensors, and lists and dicts of them: float(x) for a NumPy scalar, str(x) for a path"
        ) from error
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        if time.time() - left.stat().st_mtime > ABANDONED:
            left.unlink(missing_ok=True)
    written = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        written.touch(0o600 if target.exists() else 0o666, exist_ok=False)
        if target.exists():
            written.chmod(target.stat().st_mode & 0o7777)
        with open(written, "wb") as file:
            file.write(data + _mark(data))
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, target)
    except OSError as error:
        raise OSError(f"could not write {target}, the old checkpoint stays: {error}") from error
    finally:
        written.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], **parts: Any) -> dict[str, Any]:
    """Load a checkpoint into ``parts``, and return everything else in it.

    Raises ValueError where the checkpoint is damaged, lacks a part or does not fit one: then nothing has changed.
    """
    data, size = Path(path).read_bytes(), len(_mark(b""))
    if data[-size:] != _mark(data[:-size]):
        raise ValueError(f"{path} is not a checkpoint of proxsvm, or is damaged: its checksum differs")
    states: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if missing := set(parts) - set(states):
        raise ValueError(f"{path} lacks {sorted(missing)}; it has {sorted(states)}")
    checked = [name for name, part in parts.items() if _check(name, part, states[name])]
    before = {}
    for name in sorted(parts, key=checked.__contains__):  # first those that can only be loaded to see if they fit
        before[name] = copy.deepcopy(parts[name].state_dict())
        try:
            parts[name].load_state_dict(states.pop(name))
        except Exception as error:
            for other, state in before.items():
                parts[other].load_state_dict(state)
            raise ValueError(f"the checkpoint's {name!r} does not fit: {error}") from error
    return states


def _check(name: str, part: Any, state: Any) -> bool:
    """Raise ValueError where ``state`` does not fit ``part``; False where only loading it can tell."""
    if hasattr(part, "check_state_dict"):
        part.check_state_dict(state)
    elif isinstance(part, nn.Module):
        there, here = (
            {
                (name, getattr(x, "shape", None), getattr(x, "dtype", type(x)))
                for name, x in getattr(s, "items", tuple)()
            }
            for s in (state, part.state_dict())
        )
        if there != here:
            raise ValueError(
                f"the checkpoint's {name!r} is of another model: it has {there - here}; expected {here - there}"
            )
    return hasattr(part, "check_state_dict") or isinstance(part, nn.Module)


def _mark(data: bytes) -> bytes:
    """The end of the file, which torch.load() ignores."""
    return b"proxsvm sha256 " + hashlib.sha256(data).hexdigest().encode()
