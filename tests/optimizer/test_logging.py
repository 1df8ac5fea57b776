"""What the examples log of a run is what the steps did."""

import csv
import math

import pytest
import torch

from examples import plain
from examples.numbers import numbers
from proxsvm import ProxOptimizer
from proxsvm.losses import CrossEntropy
from proxsvm.solvers import CorrectiveFW, SingleStepFW

pytestmark = [pytest.mark.filterwarnings("ignore")]  # theirs, not ours
STEPS = len(plain.dataset()) // plain.BATCH
NAMES = {f"prox/{name}" for name in ("gamma", "eta", "step_size", "loss", "dual", "skipped")}


@pytest.fixture(autouse=True)
def _float32():
    torch.set_default_dtype(torch.float32)


def right(found):
    """Whether these are the numbers of one step: 0 ≤ γ ≤ 1 of η > 0, the step-size is their product, D ≤ loss."""
    found = {name.removeprefix("prox/"): float(value) for name, value in found.items()}
    assert 0 <= found["gamma"] <= 1
    assert found["step_size"] == pytest.approx(found["gamma"] * found["eta"], rel=1e-5)
    assert 0 < found["eta"] < math.inf
    assert found["dual"] <= found["loss"] * (1 + 1e-5)
    return True


def test_the_numbers_of_a_step():
    model, criterion = plain.network(), CrossEntropy()
    x, y = plain.dataset().tensors
    optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters())
    assert numbers(optimizer) == {}
    value = criterion(model(x), y)
    optimizer.step(lambda: value)
    found = numbers(optimizer)
    assert found.keys() >= NAMES
    assert right(found)
    assert found["prox/loss"] == pytest.approx(value.item())
    optimizer.step(lambda: criterion(model(x * torch.nan), y))
    assert numbers(optimizer)["prox/skipped"] == 1
    certified = ProxOptimizer(criterion, CorrectiveFW(max_steps=3), model.parameters())
    certified.step(lambda: criterion(model(x), y))
    assert numbers(certified)["prox/gap"] >= 0


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from examples import log_steps

    log_steps.train(str(tmp_path), epochs=2, every=2)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert set(read.Tags()["scalars"]) == NAMES
    gammas = read.Scalars("prox/gamma")
    assert [event.step for event in gammas] == list(range(2, 2 * STEPS + 1, 2))
    assert all(0 <= event.value <= 1 for event in gammas)


def test_lightning(with_lightning, tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    options = {"logger": logger, "callbacks": [with_lightning.LogSteps()], "log_every_n_steps": 2}
    with_lightning.fit(with_lightning.Automatic(), epochs=1, default_root_dir=tmp_path, **options)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["prox/gamma"]]
    assert [int(row["step"]) for row in rows] == list(range(2, STEPS + 1, 2))
    assert all(right({name: row[name] for name in NAMES}) for row in rows)


def test_hugging_face(with_huggingface, tmp_path):
    options = {"save_strategy": "no", "logging_strategy": "steps", "logging_steps": 2}
    trainer = with_huggingface.trainer(str(tmp_path), epochs=1, **options)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["step"] for line in logged] == list(range(2, STEPS + 1, 2))
    assert all(right({name: line[name] for name in NAMES}) for line in logged)
