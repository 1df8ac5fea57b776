"""Every trainer gives the weights of the plain loop. The code under test is that of examples/."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from examples import plain
from proxsvm.solvers import MultiStepFW

pytestmark = [pytest.mark.filterwarnings("ignore")]  # theirs, not ours


@pytest.fixture(autouse=True)
def float32():
    torch.set_default_dtype(torch.float32)


WAYS = [{}, {"accumulate": 2}, {"bf16": True}]
each_way = pytest.mark.parametrize("way", WAYS, ids=["plain", "accumulate", "bf16"])


def assert_same_weights(model, way):
    expected = parameters_to_vector(plain.train(**way).parameters())
    torch.testing.assert_close(parameters_to_vector(model.parameters()), expected, atol=1e-6, rtol=0)
    assert not torch.equal(expected, parameters_to_vector(plain.network().parameters()))


@each_way
def test_lightning_with_automatic_optimization(way):
    pytest.importorskip("lightning", reason="pip install 'proxsvm[trainers]'")
    from examples import with_lightning

    options = {"accumulate_grad_batches": way.get("accumulate", 1), "precision": "bf16-mixed" if "bf16" in way else 32}
    assert_same_weights(with_lightning.fit(with_lightning.Automatic(), **options), way)


@pytest.mark.parametrize("way", WAYS[:2], ids=["plain", "accumulate"])
def test_lightning_with_manual_optimization(way):
    pytest.importorskip("lightning", reason="pip install 'proxsvm[trainers]'")
    from examples import with_lightning

    assert_same_weights(with_lightning.fit(with_lightning.Manual(**way)), way)


def test_lightning_with_a_solver_of_several_steps():
    pytest.importorskip("lightning", reason="pip install 'proxsvm[trainers]'")
    from examples import with_lightning

    module = with_lightning.ManualSeveralSteps(MultiStepFW(3))
    assert plain.accuracy(with_lightning.fit(module)) > 0.8


@each_way
def test_accelerate(way):
    pytest.importorskip("accelerate", reason="pip install 'proxsvm[trainers]'")
    from accelerate.state import AcceleratorState

    from examples import with_accelerate

    AcceleratorState._reset_state(reset_partial_state=True)
    assert_same_weights(with_accelerate.train(**way), way)
    AcceleratorState._reset_state(reset_partial_state=True)


@each_way
def test_hugging_face_trainer(way):
    pytest.importorskip("transformers", reason="pip install 'proxsvm[trainers]'")
    from accelerate.state import AcceleratorState

    from examples import with_huggingface

    AcceleratorState._reset_state(reset_partial_state=True)
    assert_same_weights(with_huggingface.train(**way), way)
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_plain_loop_learns():
    assert plain.accuracy(plain.train()) > 0.9


@pytest.mark.parametrize("options", [[], ["--shard"]], ids=["ddp", "fsdp2"])
def test_torchrun(options, tmp_path):
    """Two processes, of DDP or of FSDP2, end with the weights of the plain loop."""
    engine = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [
        sys.executable,
        *engine,
        "-m",
        "examples.with_torchrun",
        *options,
        "--save",
        str(tmp_path / "weights.pt"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, errors = run.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGTERM)  # torchrun ends its ranks with itself
        raise
    assert run.returncode == 0, errors
    model = plain.network()
    model.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert_same_weights(model, {})


def test_the_script_of_torchrun_runs_alone_unchanged(tmp_path, monkeypatch, capsys):
    from examples import with_torchrun

    monkeypatch.setattr(sys, "argv", ["with_torchrun", "--save", str(tmp_path / "weights.pt")])
    with_torchrun.main()
    assert "1 process(es)" in capsys.readouterr().out
    model = plain.network()
    model.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert_same_weights(model, {})
