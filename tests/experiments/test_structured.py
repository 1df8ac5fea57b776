"""The structured tasks on tiny data in the official formats; the real sets where they are."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import studies, sweep
from experiments.report import tables
from experiments.report.results import plain, read
from experiments.structured import camvid, chunking, matching, ocr, parsing, segments, sentences
from proxsvm.losses import CRF
from proxsvm.structures import Segments


def test_missing_data_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"letter\.data is missing.*--data DIR"):
        ocr.load(tmp_path / "letter.data")


def write_letters(folder: Path) -> None:
    draw = np.random.default_rng(0)
    lines, at = [], 0
    for word in range(60):
        text = ["ab", "bca", "c"][word % 3]
        for t, letter in enumerate(text):
            at += 1
            pixels = (draw.random(128) < 0.2).astype(int)
            pixels[ord(letter) - ord("a")] = 1
            after = at + 1 if t + 1 < len(text) else -1
            lines.append("\t".join(map(str, [at, letter, after, word + 1, t + 1, word % 10, *pixels])))
    (folder / "letter.data").write_text("\n".join(lines) + "\n")


def write_sentences(folder: Path) -> None:
    plain = "He PRP B-NP\nreads VBZ B-VP\nbooks NNS B-NP\n. . O\n\n"
    late = "He PRP B-NP\nreads VBZ B-VP\nvery RB B-ADVP\nlate RB I-ADVP\nat IN B-PP\nnight NN B-NP\n. . O\n\n"
    (folder / "conll2000").mkdir()
    (folder / "conll2000" / "train.txt").write_text((plain + plain + late) * 7)
    (folder / "conll2000" / "test.txt").write_text(plain + late)


def write_frames(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed: pip install '.[experiments]'")
    draw = np.random.default_rng(0)
    for split, count in {"train": 5, "val": 1, "test": 1}.items():
        for name in (split, f"{split}annot"):
            (folder / "camvid" / name).mkdir(parents=True)
        for i in range(count):
            labels = np.zeros((6, 8), dtype=np.uint8)
            labels[3:] = camvid.ROAD
            labels[0, 0] = camvid.UNLABELLED
            picture = (draw.random((6, 8, 3)) * 50 + 150 * (labels == camvid.ROAD)[..., None]).astype(np.uint8)
            image.fromarray(picture).save(folder / "camvid" / split / f"{i}.png")
            image.fromarray(labels).save(folder / "camvid" / f"{split}annot" / f"{i}.png")


def write_trees(folder: Path) -> None:
    """He reads books late, with a contraction; and a question whose arcs cross."""
    rows = ["# text", "1-2\tHe's\t_\t_\t_\t_\t_\t_\t_\t_"]
    rows += [f"{i}\t{w}\t_\t{t}\t_\t_\t{h}\t{r}\t_\t_" for i, (w, t, h, r) in enumerate(HE_READS, 1)]
    crossing = [f"{i}\t{w}\t_\tX\t_\t_\t{h}\tdep\t_\t_" for i, (w, h) in enumerate(CROSSING, 1)]
    plain, crossed = "\n".join(rows) + "\n\n", "\n".join(crossing) + "\n\n"
    (folder / "UD_English-EWT").mkdir()
    for split, text in {"train": plain * 9 + crossed, "dev": plain * 2, "test": plain + crossed}.items():
        (folder / "UD_English-EWT" / f"en_ewt-ud-{split}.conllu").write_text(text)


HE_READS = [
    ("He", "PRON", 2, "nsubj"),
    ("reads", "VERB", 0, "root"),
    ("books", "NOUN", 2, "obj:x"),
    (".", "PUNCT", 2, "punct"),
]
CROSSING = [("a", 3), ("b", 0), ("c", 2), ("d", 1)]
WRITE = {"chunking": write_sentences, "sentences": write_sentences, "camvid": write_frames, "segments": write_sentences}
WRITE |= {"parsing": write_trees}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """``python -m experiments.structured.NAME TASK`` on tiny data, one epoch a run; returns the runs of the study."""

    def run(pattern, task, *words, scale="small"):
        WRITE.get(task, write_letters)(tmp_path)
        study = pattern.format(task)
        folders = ["--data", str(tmp_path), "--results", str(tmp_path / "r"), "--out", str(tmp_path / "out")]
        given = [*([task] if "{}" in pattern else []), *folders, "--epochs", "1", *words]
        monkeypatch.setattr("sys.argv", ["x", *given])
        sweep.alias(pattern, scale)
        return read(tmp_path / "r" / scale)[study]

    return run


def test_the_words_of_a_file_and_a_certified_step_on_one(tmp_path, capsys):
    write_letters(tmp_path)
    words, fold = ocr.load(tmp_path / "letter.data")
    assert words.tensors[0].shape == (60, 3, 129)
    assert words.tensors[2].tolist() == [2, 3, 1] * 20
    assert fold.tolist() == [i % 10 for i in range(60)]
    ocr.verify_word(words, 1)
    assert "a word of 1 letters: 26^1 labellings" in capsys.readouterr().out
    whole, held = ocr.task("large", "linear", tmp_path), ocr.task("large", "", tmp_path)
    assert (len(whole.train), len(held.train), len(held.val), len(held.test)) == (54, 44, 10, 6)


def test_fixed_from_file_to_table(command):
    """Every optimizer of the other tasks at its one setting; the results are read like theirs."""
    runs = command("fixed-{}", "chunking", "--seeds", "1")
    table = tables.fixed({"fixed-chunking": runs})
    ours, peers = plain(runs)[plain(runs).optimizer == "dfw"], plain(runs)[plain(runs).optimizer != "dfw"]
    assert len(table.rows) == len(ours) + 2 * len(peers)  # every peer a second time, averaged
    assert runs.val.between(0, 100).all()
    assert runs.test.between(0, 100).all()
    assert all(0 < curve[-1]["gamma"] <= 1 for curve in ours.curve)
    assert "proxsvm, nothing set" in [row[0] for row in table.rows]


@pytest.mark.parametrize(
    ("task", "runs"),
    [("ocr-small", 4), ("chunking", 3), ("camvid", 10), ("sentences", 16), ("segments", 4), ("matching", 6)],
)
def test_the_first_runs_from_file_to_table(task, runs, command, capsys):
    assert len(plain(command(f"first-{task}", task))) == runs
    assert "| optimizer | loss | setting |" in capsys.readouterr().out


def test_the_kinds_of_chunks_in_a_sentence(tmp_path):
    write_sentences(tmp_path)
    read = chunking.read(tmp_path / "conll2000" / "train.txt")
    assert sentences.kinds(read) == ["ADVP", "PP"]  # noun and verb phrases are everywhere
    vocabulary = chunking.Vocabulary(s[:2] for s in read)
    found = [sentences.labelled(s, vocabulary, ["ADVP", "PP"]) for s in read[:3]]
    (words, _, starts), y = sentences.take(found, torch.tensor([0, 2]))
    assert (len(words), starts.tolist(), y.tolist()) == (4 + 7, [0, 4], [[0, 0], [1, 1]])


def test_trees_of_a_file(tmp_path):
    write_trees(tmp_path)
    plain, crossed = parsing.read(tmp_path / "UD_English-EWT" / "en_ewt-ud-test.conllu")
    assert plain == (["He", "reads", "books", "."], ["PRON", "VERB", "NOUN", "PUNCT"], [2, 0, 2, 2], plain.relations)
    assert plain.relations == ["nsubj", "root", "obj", "punct"]  # without subtypes
    assert (plain.projective, crossed.projective) == (True, False)
    assert [len(part) for part in parsing.splits(tmp_path).values()] == [9, 2, 2]  # the crossed one is tested only


def test_heads_one_by_one_and_attachment(tmp_path):
    write_trees(tmp_path)
    task = parsing.task(tmp_path)
    inputs, y = task.take(task.test, torch.tensor([0, 1]), None)
    scores = task.network()(*inputs).detach()
    heads, relations, lengths = y
    words = [(b, m) for b, length in enumerate(lengths.tolist()) for m in range(1, length + 1)]
    expected = []
    for b, m in words:
        every = torch.cat([scores[b, h, m] for h in range(int(lengths[b]) + 1) if h != m])
        expected.append(every.logsumexp(0) - scores[b, heads[b, m - 1], m, relations[b, m - 1]])
    torch.testing.assert_close(parsing.LOSSES["ce"]()(scores, y), torch.stack(expected).mean())
    inputs, plain = task.take(task.train, torch.arange(2), None)  # a tree is one of the choices of heads one by one
    of_trees = task.network()(*inputs).detach()
    values = {name: float(loss()(of_trees, plain)) for name, loss in task.losses.items()}
    assert 0 < values["projective-likelihood"] <= values["spanning-likelihood"]
    right = torch.zeros_like(scores)
    for b, m in words:
        right[b, heads[b, m - 1], m, relations[b, m - 1]] = 9.0
    assert parsing.attachment([(right, y)], "spanning-hinge") == {"LAS": 100.0, "UAS": 100.0, "exact": 100.0}
    crossed = parsing.attachment([(right, y)], "projective-hinge")  # the second sentence has no such tree
    assert crossed["exact"] == 50.0
    assert crossed["LAS"] < 100


def test_parsing_from_file_to_table(command, capsys, monkeypatch):
    monkeypatch.setattr("experiments.studies.MOST", 3)  # the grid does not grow
    monkeypatch.setitem(studies.TASKS["parsing"], "losses", "ce projective-hinge")
    runs = plain(command("parsing", "parsing", "--seeds", "1"))
    chosen = runs[runs.read]
    assert len(runs) - len(chosen) == 2 * (1 + 3 + 3)
    assert len(chosen) == 2 * 3
    assert {"parsing"} == set(runs.study)
    assert "labelled attachment" in capsys.readouterr().out


def test_segments_of_chunks(tmp_path):
    write_sentences(tmp_path)
    task = segments.task(tmp_path)
    inputs, (labels, ends, lengths) = task.take(task.test, torch.tensor([0, 1]), None)
    assert ends.tolist() == [[1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 1, 1]]  # "very late" is one chunk
    scores = task.network()(*inputs)
    assert CRF(Segments())(scores, (labels, ends, lengths)).isfinite()
    marked = torch.zeros_like(scores)
    for b, start, length in ((1, 2, 2), *((0, t, 1) for t in range(4)), *((1, t, 1) for t in (0, 1, 4, 5, 6))):
        marked[b, start, length - 1, labels[b, start]] = 9.0
    assert task.judge([(marked, (labels, ends, lengths))], "hinge") == 100


def test_letters_find_their_ranks(tmp_path):
    write_letters(tmp_path)
    task = matching.task(tmp_path)
    assert all(len(ranks) > 1 for _, ranks in task.train)  # the word "c" is left out
    (pixels, sizes), y = task.take(task.train, torch.arange(4), None)
    ranks, both = y
    assert (pixels.shape[2], both.shape) == (128, (4, 2))
    assert sorted(ranks[0, : sizes[0]].tolist()) == list(range(int(sizes[0])))
    right = torch.nn.functional.one_hot(ranks, pixels.shape[1]).float()
    assert task.judge([(right, y)], "hinge") == {"letters": 100.0, "words": 100.0}
