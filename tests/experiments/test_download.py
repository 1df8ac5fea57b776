"""``experiments download`` against a real server on this machine: complete, wrong, hostile."""

import argparse
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from experiments import download, snli

SNLI = download.ARCHIVES["snli"]
CIFAR = download.ARCHIVES["cifar100"]


@pytest.fixture
def server(monkeypatch, tmp_path_factory):
    """Serves the files of ``server.folder``."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    folder = tmp_path_factory.mktemp("server")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as made:
        made.folder, made.url = folder, f"http://127.0.0.1:{made.server_port}"
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def zipped(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarred(*members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content, link in members:
            info = tarfile.TarInfo(name)
            if link:
                info.type, info.linkname = tarfile.SYMTYPE, link
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def pairs():
    """A small SNLI in the official archive's layout."""
    rows = [json.dumps({"gold_label": "neutral", "sentence1": f"dog {k}", "sentence2": "cat"}) for k in range(500)]
    text = "\n".join(rows) + "\n"
    return {f"snli_1.0/snli_1.0_{split}.jsonl": text for split in ("train", "dev", "test")} | {"__MACOSX/x": "x"}


def offer(server, monkeypatch, content, name="snli", checksum=None):
    """Put an archive on the server, under a set's official file name."""
    archive = download.ARCHIVES[name]
    checksum = checksum or "sha256:" + hashlib.sha256(content).hexdigest()
    monkeypatch.setitem(download.ARCHIVES, name, archive._replace(checksum=checksum))
    (server.folder / archive.url.rpartition("/")[2]).write_bytes(content)


def listing(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_whole_set_arrives_and_is_readable(server, monkeypatch, tmp_path):
    offer(server, monkeypatch, zipped(pairs()))
    offer(server, monkeypatch, zipped({"glove.6B.100d.txt": "dog 1 2\ncat 3 4\n", "glove.6B.50d.txt": "x"}), "glove")
    files = download.download("snli", tmp_path, server.url)
    download.download("glove", tmp_path, server.url + "/")
    assert listing(tmp_path) == sorted(["glove.6B.100d.txt", *SNLI.files])
    assert files == [tmp_path / name for name in SNLI.files]
    train, _, _, vectors = snli.load(tmp_path, None, 0)
    assert len(train) == 500
    assert vectors.shape == (4, 2)
    (server.folder / "snli_1.0.zip").unlink()
    assert download.download("snli", tmp_path, server.url) == files  # what is there is not asked for again


@pytest.mark.parametrize("here", [True, False])
def test_a_wrong_checksum_leaves_nothing(server, monkeypatch, tmp_path, here):
    offer(server, monkeypatch, zipped(pairs()), checksum="md5:" + "0" * 32)
    if here:  # an archive that is there is checked, too
        (tmp_path / "snli_1.0.zip").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"has md5:[0-9a-f]{32}; expected md5:0{32}. It was removed"):
        download.download("snli", tmp_path, server.url)
    assert listing(tmp_path) == []


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_lines_of_a_file_are_checked_where_the_archive_has_no_checksum(server, monkeypatch, tmp_path, end):
    checksum = "lines:" + hashlib.sha256(b"a,b\n1,2\n").hexdigest()
    offer(server, monkeypatch, zipped({"hour.csv": f"a,b{end}1,3{end}"}), "bike", checksum)
    with pytest.raises(ValueError, match=r"hour\.csv\.part has sha256:\w+; expected"):
        download.download("bike", tmp_path, server.url)
    (tmp_path / "bike+sharing+dataset.zip").unlink()
    offer(server, monkeypatch, zipped({"hour.csv": f"a,b{end}1,2{end}"}), "bike", checksum)
    download.download("bike", tmp_path, server.url)
    assert listing(tmp_path) == ["hour.csv"]


def test_servers_that_fail_are_named(server, tmp_path):
    with pytest.raises(ConnectionError, match=r"snli_1.0.zip: .*404.*--mirror URL"):
        download.download("snli", tmp_path, server.url)
    with pytest.raises(ConnectionError, match="Run the command again"):
        download.download("snli", tmp_path, "http://127.0.0.1:1")
    with pytest.raises(ValueError, match="expected one that starts with http"):
        download.download("snli", tmp_path, f"file://{tmp_path}")


def test_no_path_of_an_archive_is_followed(server, monkeypatch, tmp_path):
    train, test = CIFAR.files
    hostile = [("../evil", b"x", None), ("/tmp/proxsvm-evil", b"x", None), ("cifar-100-binary", b"", "/tmp")]
    offer(server, monkeypatch, tarred((train, b"a", None), (test, b"b", None), *hostile), "cifar100")
    data = tmp_path / "data"
    download.download("cifar100", data, server.url)
    assert listing(tmp_path) == sorted(f"data/{name}" for name in CIFAR.files)
    assert not (data / "cifar-100-binary").is_symlink()
    offer(server, monkeypatch, zipped({**pairs(), "../evil": "x"}))
    download.download("snli", data, server.url)
    assert not [name for name in listing(tmp_path) if "evil" in name]
    offer(server, monkeypatch, tarred(("CaliforniaHousing/cal_housing.data", b"1,2", None)), "california")
    assert download.download("california", data, server.url) == [data / "cal_housing.data"]


def test_a_link_instead_of_a_file_is_refused(server, monkeypatch, tmp_path):
    train, test = CIFAR.files
    offer(server, monkeypatch, tarred((test, b"b", None), (train, b"", "/etc/passwd")), "cifar100")
    with pytest.raises(ValueError, match=r"has no file cifar-100-binary/train.bin"):
        download.download("cifar100", tmp_path, server.url)
    offer(server, monkeypatch, zipped({"readme": "x"}))
    with pytest.raises(ValueError, match=r"has no file snli_1.0/snli_1.0_train.jsonl"):
        download.download("snli", tmp_path, server.url)


def test_the_command_line(server, monkeypatch, tmp_path, capsys):
    offer(server, monkeypatch, zipped(pairs()))
    parser = argparse.ArgumentParser()
    download.add_arguments(parser)
    download.main(parser.parse_args(["snli", "--data", str(tmp_path), "--mirror", server.url]))
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in SNLI.files]
    with pytest.raises(SystemExit, match=r"glove: .*404"):
        download.main(parser.parse_args(["snli", "glove", "--data", str(tmp_path), "--mirror", server.url]))
    assert "california, bike" in " ".join(parser.format_help().split())
