"""``experiments download`` against a real server on this machine: whole, resumed, broken off, wrong, hostile."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from experiments import download, snli

SNLI = download.ARCHIVES["snli"]
CIFAR = download.ARCHIVES["cifar100"]


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.files``; knows Range unless told not to; hangs up after ``server.limit`` bytes of a body."""

    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        content = server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        start = 0
        if asked and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
        self.send_response(206 if asked and server.ranges else 200)
        if asked and server.ranges:
            self.send_header("Content-Range", f"bytes {start + server.shift}-{len(content) - 1}/{len(content)}")
        if server.tells_size:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: server.limit])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.files, made.asked, made.ranges, made.limit, made.shift, made.tells_size = {}, [], True, None, 0, True
        made.url = f"http://127.0.0.1:{made.server_port}/data"
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


def pairs():
    """A small SNLI in the official archive's layout."""
    rows = [json.dumps({"gold_label": "neutral", "sentence1": f"dog {k}", "sentence2": "cat"}) for k in range(500)]
    text = "\n".join(rows) + "\n"
    return {f"snli_1.0/snli_1.0_{split}.jsonl": text for split in ("train", "dev", "test")} | {"__MACOSX/x": "x"}


def offer(server, monkeypatch, content, name="snli", digest=None):
    """Put an archive on the server, under a set's official file name."""
    archive = download.ARCHIVES[name]
    checksum = "sha256:" + (digest or hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(download.ARCHIVES, name, replace(archive, checksum=checksum))
    server.files["/data/" + archive.url.rpartition("/")[2]] = content
    return content


def listing(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_whole_set_arrives_and_is_readable(server, monkeypatch, tmp_path):
    offer(server, monkeypatch, zipped(pairs()))
    offer(server, monkeypatch, zipped({"glove.6B.100d.txt": "dog 1 2\ncat 3 4\n", "glove.6B.50d.txt": "x"}), "glove")
    files = download.download("snli", tmp_path, server.url)
    download.download("glove", tmp_path, server.url + "/")
    assert listing(tmp_path) == ["glove.6B.100d.txt", *SNLI.files[1:2], *SNLI.files[2:], *SNLI.files[:1]]
    assert files == [tmp_path / name for name in SNLI.files]
    train, _, _, vectors = snli.load(tmp_path, None, 0)
    assert len(train) == 500
    assert vectors.shape == (4, 2)
    download.download("snli", tmp_path, server.url)
    assert server.asked == [None, None]  # what is there is not asked for again


@pytest.mark.parametrize("ranges", [True, False])
def test_a_stopped_download_goes_on(server, monkeypatch, tmp_path, ranges):
    content = offer(server, monkeypatch, zipped(pairs()))
    server.limit = 1000
    with pytest.raises(ConnectionError, match=r"Run the same command again to resume"):
        download.download("snli", tmp_path, server.url)
    assert listing(tmp_path) == ["snli_1.0.zip.part"]
    assert (tmp_path / "snli_1.0.zip.part").read_bytes() == content[:1000]
    server.limit, server.ranges = None, ranges
    download.download("snli", tmp_path, server.url)
    assert server.asked == [None, "bytes=1000-"]
    assert listing(tmp_path) == sorted(SNLI.files)


def test_a_whole_part_is_only_checked(server, monkeypatch, tmp_path):
    (tmp_path / "snli_1.0.zip.part").write_bytes(offer(server, monkeypatch, zipped(pairs())))
    download.download("snli", tmp_path, server.url)
    assert listing(tmp_path) == sorted(SNLI.files)


@pytest.mark.parametrize("tells_size", [True, False])
def test_a_wrong_checksum_leaves_nothing(server, monkeypatch, tmp_path, tells_size):
    offer(server, monkeypatch, zipped(pairs()), digest="0" * 64)
    server.tells_size = tells_size
    with pytest.raises(ValueError, match=r"has sha256:[0-9a-f]{64}; expected sha256:0{64}. It was removed"):
        download.download("snli", tmp_path, server.url)
    assert listing(tmp_path) == []


@pytest.mark.parametrize("tells_size", [True, False])
@pytest.mark.parametrize("have", [0, 1000])
def test_no_more_is_kept_than_the_archive_can_have(server, monkeypatch, tmp_path, tells_size, have):
    content = offer(server, monkeypatch, zipped(pairs()))
    size = int(len(content) / (1.2 * download.SLACK))
    monkeypatch.setitem(download.ARCHIVES, "snli", replace(download.ARCHIVES["snli"], size=size))
    monkeypatch.setattr(download, "BLOCK", 1000)
    if have:
        (tmp_path / "snli_1.0.zip.part").write_bytes(content[:have])
    server.tells_size = tells_size
    with pytest.raises(ValueError, match=r"snli_1.0.zip sends .* bytes; expected at most \d+: it is another file"):
        download.download("snli", tmp_path, server.url)
    assert listing(tmp_path) == []
    monkeypatch.setitem(download.ARCHIVES, "snli", replace(download.ARCHIVES["snli"], size=len(content)))
    download.download("snli", tmp_path, server.url)
    assert listing(tmp_path) == sorted(SNLI.files)


def test_a_part_of_another_file_is_found_out(server, monkeypatch, tmp_path):
    offer(server, monkeypatch, zipped(pairs()))
    (tmp_path / "snli_1.0.zip.part").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="It was removed: run the command again"):
        download.download("snli", tmp_path, server.url)
    download.download("snli", tmp_path, server.url)
    assert listing(tmp_path) == sorted(SNLI.files)


def test_an_archive_that_lies_there_is_checked_too(server, monkeypatch, tmp_path):
    packed = tmp_path / "snli_1.0.zip"
    packed.write_bytes(offer(server, monkeypatch, zipped(pairs()))[:-1])
    with pytest.raises(ValueError, match=r"snli_1.0.zip has sha256:\w+; expected .*: remove it and run again"):
        download.download("snli", tmp_path, server.url)
    packed.write_bytes(server.files["/data/snli_1.0.zip"])
    download.download("snli", tmp_path, server.url)
    assert listing(tmp_path) == sorted(SNLI.files)
    assert server.asked == []


def test_servers_that_fail_are_named(server, monkeypatch, tmp_path):
    with pytest.raises(ConnectionError, match=r"snli_1.0.zip answers 404 Not Found. Another address: --mirror URL"):
        download.download("snli", tmp_path, server.url)
    offer(server, monkeypatch, zipped(pairs()))
    (tmp_path / "snli_1.0.zip.part").write_bytes(b"x" * 100)
    server.shift = 5
    with pytest.raises(ValueError, match=r"asked for bytes from 100 and answers 'bytes 105-"):
        download.download("snli", tmp_path, server.url)
    with pytest.raises(ConnectionError, match=r"broke off \(.*\) with 100 bytes here. Run the same command again"):
        download.download("snli", tmp_path, "http://127.0.0.1:1")
    with pytest.raises(ValueError, match="expected one that starts with http"):
        download.download("snli", tmp_path, f"file://{tmp_path}")
    with pytest.raises(ValueError, match="there are cifar10, cifar100, snli, glove"):
        download.download("mnist", tmp_path)


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


def test_no_path_of_an_archive_is_followed(server, monkeypatch, tmp_path):
    train, test = CIFAR.files
    hostile = [("../evil", b"x", None), ("/tmp/proxsvm-evil", b"x", None), ("cifar-100-binary", b"", "/tmp")]
    offer(server, monkeypatch, tarred((train, b"a", None), (test, b"b", None), *hostile), "cifar100")
    data = tmp_path / "data"
    download.download("cifar100", data, server.url)
    assert listing(tmp_path) == sorted(f"data/{name}" for name in CIFAR.files)
    assert not (data / "cifar-100-binary").is_symlink()
    assert (data / train).read_bytes() == b"a"
    offer(server, monkeypatch, zipped({**pairs(), "../evil": "x"}))
    download.download("snli", data, server.url)
    assert not [name for name in listing(tmp_path) if "evil" in name]


def test_a_link_instead_of_a_file_is_refused(server, monkeypatch, tmp_path):
    train, test = CIFAR.files
    offer(server, monkeypatch, tarred((test, b"b", None), (train, b"", "/etc/passwd")), "cifar100")
    with pytest.raises(ValueError, match=r"no readable file cifar-100-binary/train.bin \(.*not a regular file"):
        download.download("cifar100", tmp_path, server.url)
    offer(server, monkeypatch, zipped({"readme": "x"}))
    with pytest.raises(ValueError, match=r"no readable file snli_1.0/snli_1.0_train.jsonl"):
        download.download("snli", tmp_path, server.url)


def test_the_command_line(server, monkeypatch, tmp_path, capsys):
    offer(server, monkeypatch, zipped(pairs()))
    parser = argparse.ArgumentParser()
    download.add_arguments(parser)
    download.main(parser.parse_args(["snli", "--data", str(tmp_path), "--mirror", server.url]))
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in SNLI.files]
    with pytest.raises(SystemExit, match=r"glove: .* answers 404"):
        download.main(parser.parse_args(["snli", "glove", "--data", str(tmp_path), "--mirror", server.url]))
    with pytest.raises(SystemExit):
        parser.parse_args(["mnist"])
    assert "cifar10" in capsys.readouterr().err


def test_every_set_has_an_official_address_and_a_checksum():
    for archive in download.ARCHIVES.values():
        assert archive.url.startswith(("https://www.cs.toronto.edu/~kriz/", "https://nlp.stanford.edu/"))
        kind, digest = archive.checksum.split(":")
        assert len(bytes.fromhex(digest)) == hashlib.new(kind, usedforsecurity=False).digest_size
