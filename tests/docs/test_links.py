"""The list of external links is complete, its check can fail, and links between files lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:|mailto:|#)([^)#]+)", page.read_text()):
        assert (ROOT / link).exists(), link
