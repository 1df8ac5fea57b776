"""The list of external links is complete, its check can fail; links between files and commands lead somewhere."""

import importlib.util
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("links", ROOT / "docs" / "links.py")
links = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(links)


def test_the_list_is_up_to_date():
    assert links.PAGE.read_text(encoding="utf-8") == links.page(), "run `make links`"


def test_an_address_answers_or_does_not():
    class Site(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/here" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert links.answer(f"{address}/here") is None
        assert "404" in links.answer(f"{address}/gone")
        server.shutdown()


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda page: page.name)
def test_links_and_commands_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    for link in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text):
        assert (page.parent / link).exists(), link
    makefile = (ROOT / "Makefile").read_text()
    for command in re.findall(r"`make ([a-z-]+)", text):
        assert f"\n{command}:" in makefile, command
    if page.name != "CHANGELOG.md":
        text = re.sub(r"\(its\s+`[^`]*`\)", "", text)  # "version 0.2 (its `...`)": a command of the past
        for names in re.findall(r"`python -m benchmarks ([a-z_]+(?: [a-z_]+)*)", text):
            assert not set(names.split()) - set(NAMES), names
