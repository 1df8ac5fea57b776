"""Every trainer gives the weights and the averages of the plain loop, and evaluates and saves the averages.

The code under test is that of examples/.
"""

import csv
import math
import sys
from typing import ClassVar

import pytest
import torch

from examples import plain
from examples.numbers import numbers
from proxsvm import ProxOptimizer, checkpoint
from proxsvm.losses import CrossEntropy
from proxsvm.solvers import CorrectiveFW, SingleStepFW
from tests.cases import vector
from tests.parallel import run_module

pytestmark = [pytest.mark.filterwarnings("ignore")]  # theirs, not ours


@pytest.fixture(autouse=True)
def float32():
    torch.set_default_dtype(torch.float32)


WAYS = [{}, {"accumulate": 2}, {"bf16": True}]
each_way = pytest.mark.parametrize("way", WAYS, ids=["plain", "accumulate", "bf16"])


def versions(model):
    """The training weights and the averages."""
    return vector(model.train()), vector(model.eval())


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def averages(epochs=3, **way):
    """The averages of the plain loop."""
    return vector(plain.train(epochs, **way).eval())


def assert_same_weights(model, way):
    weights, expected = versions(plain.train(**way))
    assert not torch.allclose(weights, expected)
    assert not torch.allclose(weights, vector(plain.network()))
    close(versions(model), (weights, expected))


def saved(state, prefix=""):
    """A model's saved state, as one vector."""
    model = plain.network()
    names = dict(model.named_parameters())
    return torch.cat([state[prefix + name].flatten() for name in names])


@each_way
def test_lightning_with_automatic_optimization(way, with_lightning):
    options = {"accumulate_grad_batches": way.get("accumulate", 1), "precision": "bf16-mixed" if "bf16" in way else 32}
    assert_same_weights(with_lightning.fit(with_lightning.Automatic(), **options), way)


@pytest.mark.parametrize("way", WAYS[:2], ids=["plain", "accumulate"])
def test_lightning_with_manual_optimization(way, with_lightning):
    assert_same_weights(with_lightning.fit(with_lightning.Manual(**way)), way)


@each_way
@pytest.mark.usefixtures("accelerate")
def test_accelerate(way):
    from examples import with_accelerate

    assert_same_weights(with_accelerate.train(**way), way)


@each_way
def test_hugging_face_trainer(way, with_huggingface):
    assert_same_weights(with_huggingface.train(**way), way)


@pytest.mark.parametrize("options", [[], ["--shard"]], ids=["ddp", "fsdp2"])
def test_torchrun(options, tmp_path):
    """Two processes end with the weights of the plain loop."""
    weights = tmp_path / "weights.pt"
    run_module("examples.with_torchrun", *options, "--save", str(weights), ranks=2)
    close(saved(torch.load(weights)), averages())


def test_the_script_of_torchrun_runs_alone_unchanged(tmp_path, monkeypatch, capsys):
    from examples import with_torchrun

    monkeypatch.setattr(sys, "argv", ["with_torchrun", "--save", str(tmp_path / "weights.pt")])
    with_torchrun.main()
    assert "1 process(es)" in capsys.readouterr().out
    close(saved(torch.load(tmp_path / "weights.pt")), averages())


def test_the_plain_loop_saves_the_averages_and_resumes(tmp_path):
    plain.train(2, save=str(tmp_path / "last.pt"))
    close(saved(checkpoint.load(tmp_path / "last.pt")["model"]), averages(2))
    assert_same_weights(plain.train(resume=str(tmp_path / "last.pt")), {})


class Flat:
    """A LightningModule whose own layers are called one by one: no module's call shows where training begins."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        for layer in self.model:
            x = layer(x)
        return self.criterion(x, y)


@pytest.mark.parametrize("kind", ["whole", "flat", "manual"])
def test_lightning_evaluates_and_saves_the_averages_and_resumes(kind, with_lightning, tmp_path):
    lightning, example = pytest.importorskip("lightning"), with_lightning

    class Watching(lightning.Callback):
        seen: ClassVar[list[torch.Tensor]] = []

        def on_validation_start(self, trainer, pl_module):
            self.seen.append(vector(pl_module))

    kinds = {"whole": example.Automatic, "flat": type("F", (Flat, example.Automatic), {}), "manual": example.Manual}
    made = kinds[kind]
    keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1)
    module = example.fit(made(), callbacks=[Watching(), keep])
    assert_same_weights(module, {})
    assert len(Watching.seen) == 4  # Lightning tries the validation first
    for epochs, found in enumerate(Watching.seen):
        close(found, averages(epochs))
    for epoch in range(3):
        found = torch.load(tmp_path / f"epoch={epoch}.ckpt", weights_only=False)
        close(saved(found["state_dict"], "model."), averages(epoch + 1))
    assert_same_weights(example.fit(made(), resume=str(tmp_path / "epoch=0.ckpt")), {})


def test_lightning_without_an_average_is_said(with_lightning):
    class Without(with_lightning.Automatic):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    with pytest.raises(ValueError, match="no optimizer keeps an average to follow"):
        with_lightning.fit(Without())


@pytest.mark.usefixtures("accelerate")
def test_accelerate_saves_the_averages_and_resumes(tmp_path):
    from safetensors.torch import load_file

    from examples import with_accelerate

    with_accelerate.train(2, save=str(tmp_path))
    for path in ("model.safetensors", "model/model.safetensors"):
        close(saved(load_file(tmp_path / path)), averages(2))
    assert_same_weights(with_accelerate.train(1, resume=str(tmp_path)), {})


def test_hugging_face_saves_the_averages_without_an_evaluation_and_resumes(with_huggingface, tmp_path):
    from safetensors.torch import load_file

    trainer = with_huggingface.trainer(str(tmp_path), save_strategy="epoch")
    trainer.train()
    for epochs in (1, 2, 3):
        found = load_file(tmp_path / f"checkpoint-{8 * epochs}" / "model.safetensors")
        close(saved(found, "network."), averages(epochs))
    trainer.save_model(str(tmp_path / "last"))
    close(saved(load_file(tmp_path / "last" / "model.safetensors"), "network."), averages())
    resumed = with_huggingface.trainer(str(tmp_path), save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert_same_weights(resumed.model.network, {})


def test_hugging_face_evaluates_the_averages_and_finds_the_best_again(with_huggingface, tmp_path):
    options = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "loss", "greater_is_better": True}  # the worst: it is not the last
    trainer = with_huggingface.trainer(str(tmp_path), **options)
    trainer.train()
    losses = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]
    x, y = plain.dataset().tensors
    for epochs, found in enumerate(losses, 1):
        expected = trainer.model.criterion(plain.train(epochs).eval()(x), y)
        assert found == pytest.approx(expected.item(), abs=1e-5)
    best = averages(1 + losses.index(max(losses)))
    assert max(losses) > losses[-1]
    for found in versions(trainer.model.network):
        close(found, best)
    found = torch.from_numpy(trainer.predict(with_huggingface.Dicts()).predictions)
    close(found, trainer.model.network(x).detach())


# What the examples log of a run is what the steps did.

STEPS = len(plain.dataset()) // plain.BATCH
NAMES = {f"prox/{name}" for name in ("gamma", "eta", "step_size", "loss", "dual", "skipped")}


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


def test_tensorboard_has_the_steps(tmp_path):
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


def test_lightning_logs_the_steps(with_lightning, tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    options = {"logger": logger, "callbacks": [with_lightning.LogSteps()], "log_every_n_steps": 2}
    with_lightning.fit(with_lightning.Automatic(), epochs=1, default_root_dir=tmp_path, **options)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["prox/gamma"]]
    assert [int(row["step"]) for row in rows] == list(range(2, STEPS + 1, 2))
    assert all(right({name: row[name] for name in NAMES}) for row in rows)


def test_hugging_face_logs_the_steps(with_huggingface, tmp_path):
    options = {"save_strategy": "no", "logging_strategy": "steps", "logging_steps": 2}
    trainer = with_huggingface.trainer(str(tmp_path), epochs=1, **options)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["step"] for line in logged] == list(range(2, STEPS + 1, 2))
    assert all(right({name: line[name] for name in NAMES}) for line in logged)
