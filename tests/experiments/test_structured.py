"""The structured experiments on tiny data in the official formats; the real sets where they are."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.report import gallery, study_tables
from experiments.report.results import read
from experiments.structured import ablation, camvid, chunking, fixed, ocr, sentences, tuned
from experiments.structured.runs import Runs, need
from experiments.structured.structural_svm import ChainSVM
from proxsvm import ProxProblem
from proxsvm.losses import ChainHinge
from proxsvm.solvers import ExactQP

DATA = Path(__file__).parents[2] / "data"
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def single_precision():
    torch.set_default_dtype(torch.float32)


def test_the_certificate_of_the_structural_svm_encloses_the_exact_value():
    torch.manual_seed(0)
    N, T, D, K, decay = 6, 3, 2, 3, 0.2
    x, labels, lengths = torch.randn(N, T, D).double(), torch.randint(K, (N, T)), torch.tensor([3, 1, 2, 3, 3, 2])
    W, A = (torch.zeros(s, dtype=torch.double, requires_grad=True) for s in ((D, K), (K, K)))
    problem = ProxProblem.from_scores(ChainHinge(), (x @ W, A), (labels, lengths), [W, A], lr=1 / decay)
    exact = float(problem.dual(ExactQP().solve(problem)))
    states = list(ChainSVM(x, labels, lengths, K, decay).solve(tol=1e-5, max_passes=300, block=3))
    for now in states:
        assert now.dual <= exact + 1e-8 <= now.primal + 2e-8
    assert states[-1].relative_gap <= 1e-5
    assert states[-1].dual == pytest.approx(exact, rel=1e-4)


def test_finished_runs_are_not_run_again(tmp_path):
    runs, calls = Runs(tmp_path / "a" / "runs.jsonl"), []
    for _ in range(2):
        runs.once(lambda: {"value": calls.append(1) or len(calls)}, method="x", seed=1)
    again = Runs(tmp_path / "a" / "runs.jsonl")
    assert again.once(lambda: {"value": -1}, method="x", seed=1)["value"] == 1
    assert again.once(lambda: {"value": 2}, method="x", seed=2)["value"] == 2
    assert [json.loads(line)["value"] for line in (tmp_path / "a" / "runs.jsonl").read_text().splitlines()] == [1, 2]


def test_missing_data_says_how_to_get_it(tmp_path):
    with pytest.raises(SystemExit, match=r"letter\.data is missing.*--data DIR"):
        need(tmp_path / "letter.data", ocr.HOW)


def write_letters(path: Path, words: int = 30) -> None:
    draw = np.random.default_rng(0)
    lines, at = [], 0
    for word in range(words):
        text = ["ab", "bca", "c"][word % 3]
        for t, letter in enumerate(text):
            at += 1
            pixels = (draw.random(128) < 0.2).astype(int)
            pixels[ord(letter) - ord("a")] = 1
            after = at + 1 if t + 1 < len(text) else -1
            lines.append("\t".join(map(str, [at, letter, after, word + 1, t + 1, word % 10, *pixels])))
    path.write_text("\n".join(lines) + "\n")


def test_ocr_from_file_to_picture(tmp_path, monkeypatch, capsys):
    write_letters(tmp_path / "letter.data")
    words, fold = ocr.load(tmp_path / "letter.data")
    assert words.x.shape == (30, 3, 129)
    assert words.lengths.tolist() == [2, 3, 1] * 10
    assert fold.tolist() == [i % 10 for i in range(30)]
    command = ["ocr", "--data", str(tmp_path), "--results", str(tmp_path / "r.jsonl"), "--epochs", "2", "2"]
    monkeypatch.setattr(
        "sys.argv", [*command, "--tol", "0.5", "--decay", "0.5", "--picture", str(tmp_path / "ocr.png")]
    )
    for _ in range(2):
        ocr.main()
    out = capsys.readouterr().out
    assert out.count("running:") == 2 * len(ocr.METHODS)
    assert out.count("already done:") == 2 * len(ocr.METHODS)
    assert (tmp_path / "ocr.png").stat().st_size > 1000


def write_sentences(folder: Path) -> None:
    sentence = "He PRP B-NP\nreads VBZ B-VP\nold JJ B-NP\nbooks NNS I-NP\n. . O\n\n"
    (folder / "conll2000").mkdir()
    (folder / "conll2000" / "train.txt").write_text(sentence * 20)
    (folder / "conll2000" / "test.txt").write_text(sentence * 3)


def test_chunking_from_file_to_picture(tmp_path, monkeypatch, capsys):
    write_sentences(tmp_path)
    command = ["chunking", "--data", str(tmp_path), "--results", str(tmp_path / "r.jsonl"), "--epochs", "2"]
    monkeypatch.setattr("sys.argv", [*command, "--picture", str(tmp_path / "c.png")])
    chunking.main()
    assert capsys.readouterr().out.count("running:") == len(chunking.METHODS)
    assert (tmp_path / "c.png").stat().st_size > 1000


def test_sentences_from_file_to_table(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install '.[estimators]'")
    plain = "He PRP B-NP\nreads VBZ B-VP\nbooks NNS B-NP\n. . O\n\n"
    late = "He PRP B-NP\nreads VBZ B-VP\nvery RB B-ADVP\nlate RB I-ADVP\nat IN B-PP\nnight NN B-NP\n. . O\n\n"
    (tmp_path / "conll2000").mkdir()
    (tmp_path / "conll2000" / "train.txt").write_text((plain + plain + late) * 20)
    (tmp_path / "conll2000" / "test.txt").write_text((plain + late) * 3)
    read = chunking.read(tmp_path / "conll2000" / "train.txt")
    assert sentences.kinds(read) == ["ADVP", "PP"]  # noun and verb phrases are everywhere
    assert sentences.labelled(read[:3], chunking.Vocabulary(read), ["ADVP", "PP"]).y.tolist() == [
        [0, 0],
        [0, 0],
        [1, 1],
    ]
    command = ["sentences", "--data", str(tmp_path), "--results", str(tmp_path / "r.jsonl"), "--epochs", "8"]
    monkeypatch.setattr("sys.argv", [*command, "--batch", "20", "--seeds", "0"])
    for _ in range(2):
        sentences.main()
    out = capsys.readouterr().out
    assert out.count("running:") == out.count("already done:") == 2 * len(sentences.METHODS)
    for title in sentences.METHODS.values():
        assert f"| {title} |" in out
    done = Runs(tmp_path / "r.jsonl").done
    assert max(r["map"] for r in done if r["config"]["method"] == "average precision") == pytest.approx(100)


def write_frames(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed: pip install '.[experiments]'")
    draw = np.random.default_rng(0)
    for split, count in {"train": 4, "val": 2, "test": 24}.items():
        for name in (split, f"{split}annot"):
            (folder / "camvid" / name).mkdir(parents=True)
        for i in range(count):
            labels = np.zeros((8, 10), dtype=np.uint8)
            labels[4:] = camvid.ROAD
            labels[0, 0] = camvid.UNLABELLED
            picture = (draw.random((8, 10, 3)) * 50 + 150 * (labels == camvid.ROAD)[..., None]).astype(np.uint8)
            image.fromarray(picture).save(folder / "camvid" / split / f"{i}.png")
            image.fromarray(labels).save(folder / "camvid" / f"{split}annot" / f"{i}.png")


def test_camvid_from_file_to_picture(tmp_path, monkeypatch, capsys):
    write_frames(tmp_path)
    command = [
        "camvid",
        "--data",
        str(tmp_path),
        "--results",
        str(tmp_path / "r.jsonl"),
        "--epochs",
        "2",
        "--seeds",
        "0",
    ]
    monkeypatch.setattr("sys.argv", [*command, "--weights", str(tmp_path / "w"), "--picture", str(tmp_path / "c.png")])
    camvid.main()
    out = capsys.readouterr().out
    assert all(title in out for title in camvid.METHODS.values())
    assert (tmp_path / "c.png").stat().st_size > 1000


@pytest.mark.parametrize("task", ["ocr-small", "ocr-large", "chunking", "camvid"])
def test_tuned_from_file_to_table(task, tmp_path, monkeypatch, capsys):
    write = {"chunking": write_sentences, "camvid": write_frames}
    write.get(task, lambda folder: write_letters(folder / "letter.data", words=60))(tmp_path)
    command = ["tuned", task, "--data", str(tmp_path), "--results", str(tmp_path / "TASK.jsonl")]
    monkeypatch.setattr("sys.argv", [*command, "--epochs", "1", "2", "--seeds", "1", "2"])
    tuned.main()
    out = capsys.readouterr().out
    done = Runs(tmp_path / f"{task}.jsonl").done
    methods = {(r["config"]["loss"], r["config"]["how"]) for r in done}
    assert len(methods) == 6
    assert all(f"| {how} |" in out or f"| ProxOptimizer, {how} |" in out for _, how in methods)
    for loss, how in methods:
        tried, chosen = (
            [
                r
                for r in done
                if (r["config"]["loss"], r["config"]["how"]) == (loss, how) and (r["config"]["seed"] > 0) == c
            ]
            for c in (False, True)
        )
        best = max(tried, key=lambda r: max(r["val_last"], r["val_average"]))
        assert {r["config"]["eta"] for r in chosen} == {best["config"]["eta"]}
        assert len(chosen) == 2
        assert not any("test_last" in r for r in tried)
    tuned.main()
    assert "running" not in capsys.readouterr().out


@pytest.mark.parametrize("task", ["ocr-large", "chunking", "camvid"])
def test_fixed_from_file_to_table(task, tmp_path, monkeypatch, capsys):
    """Every optimizer of the other tasks at its one setting; the results are read like theirs."""
    write = {"chunking": write_sentences, "camvid": write_frames}
    write.get(task, lambda folder: write_letters(folder / "letter.data", words=60))(tmp_path)
    command = ["fixed", task, "--data", str(tmp_path), "--results", str(tmp_path / "results" / "fixed-TASK.jsonl")]
    monkeypatch.setattr("sys.argv", [*command, "--epochs", "2", "--seeds", "1"])
    fixed.main()
    found = read(tmp_path / "results")
    table = study_tables.fixed(found)
    assert list(found) == [f"fixed-{task}"]
    assert [row[0] for row in table.rows][:3] == [
        "proxsvm, diagonal, η = 0.001, momentum 0.9",
        "proxsvm, diagonal, η = 0.01, no momentum",
        "proxsvm, diagonal, η = auto",
    ]
    assert len(table.rows) == 3 + 2 * 7  # every peer a second time, averaged
    assert all(0 <= run.best() <= 100 and 0 <= run.test <= 100 for run in found[f"fixed-{task}"])
    assert all(0 < run.last.gamma <= 1 for run in found[f"fixed-{task}"] if run.method.optimizer == "dfw")
    capsys.readouterr()
    fixed.main()
    assert "running" not in capsys.readouterr().out


@pytest.mark.parametrize("task", ["ocr-large", "chunking", "camvid"])
def test_ablation_from_file_to_table_and_figure(task, tmp_path, monkeypatch, capsys):
    """The exact γ, γ ≡ 1 and three steps, alike in all else; the results are read like those of the other tasks."""
    write = {"chunking": write_sentences, "camvid": write_frames}
    write.get(task, lambda folder: write_letters(folder / "letter.data", words=60))(tmp_path)
    command = ["ablation", task, "--data", str(tmp_path), "--results", str(tmp_path / "results/ablation-TASK.jsonl")]
    monkeypatch.setattr("sys.argv", [*command, "--epochs", "2"])
    ablation.main()
    found = read(tmp_path / "results")
    runs = {(r.method.optimizer, r.method.loss, r.method.metric, r.config["lr"]): r for r in found[f"ablation-{task}"]}
    exact, full, three = (
        {key[1:]: run for key, run in runs.items() if key[0] == kind} for kind in ("dfw", "dfw-full", "multistep")
    )
    assert (len(exact), len(full), len(three)) == (12, 12, 4)
    assert all(run.test is None for run in runs.values())
    assert all(epoch.gamma == 1 for run in full.values() for epoch in run.curve)
    assert any(run.last.gamma < 0.9 for run in exact.values())
    for key, run in exact.items():  # the same training while γ is 1, and another one after that
        first, last = (epoch.gamma for epoch in run.curve)
        if first < 1 or last == 1:
            assert (run.last.train_loss == full[key].last.train_loss) == (first == 1)
    assert any(run.last.train_loss != exact[key].last.train_loss for key, run in three.items())
    rows = study_tables.ablation(found).rows
    assert [[row[0], row[7] == "—"] for row in rows] == [[rows[0][0], middle] for middle in (True, False, True)] * 4
    assert list(gallery.drawings(found)) == ["figure-1", "gamma"]
    assert len(gallery.drawings(found)["gamma"].draw().axes) == 2
    capsys.readouterr()
    ablation.main()
    assert "running" not in capsys.readouterr().out


@pytest.mark.parametrize(("best", "tried"), [(0, 3), (2, 5), (-1, 4), (9, 7)])
def test_a_grid_grows_where_its_best_value_is_at_an_edge(best, tried, tmp_path, monkeypatch):
    monkeypatch.setattr(
        tuned,
        "train",
        lambda task, loss, how, eta, *a, **k: dict.fromkeys(
            ("val_last", "val_average"), -abs(math.log(eta, 10**0.5) - best)
        ),
    )
    runs = Runs(tmp_path / "r.jsonl")
    assert tuned.tune(runs, SimpleNamespace(epochs=(1, 1)), "hinge", "diagonal", 1.0) == pytest.approx(
        10 ** (min(best, 5) / 2), rel=0.05
    )
    assert len(runs.done) == tried


def test_the_best_chunks_are_seqevals():
    metrics = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed: pip install '.[experiments]'")
    truth, found = [["B-NP", "I-NP", "O", "B-VP"]], [["B-NP", "O", "O", "B-VP"]]
    assert metrics.f1_score(truth, found) == pytest.approx(0.5)  # one of two chunks, as conlleval counts


@pytest.mark.skipif(not (DATA / "letter.data").exists(), reason="data/letter.data is missing: see docs/structured.md")
def test_the_real_letters():
    words, fold = ocr.load(DATA / "letter.data")
    assert (len(words.x), int(words.lengths.sum()), len(fold.unique())) == (6877, 52152, 10)


@pytest.mark.parametrize("task", [path.stem for path in sorted((ROOT / "experiments/results/tuned").glob("*.jsonl"))])
def test_the_docs_show_what_the_tuned_runs_say(task):
    done = [json.loads(line) for line in (ROOT / f"experiments/results/tuned/{task}.jsonl").read_text().splitlines()]
    assert tuned.table(task, done) in (ROOT / "docs" / "structured.md").read_text(encoding="utf-8")
