"""A web server on this machine that can misbehave: break off, ignore ranges, lie."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What is served, and what was asked: one line a request, ``GET /path bytes=5-``."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ranges: bool = True
    break_after: Callable[[str, int], int | None] = lambda path, request: None
    fail: Callable[[str, int], int | None] = lambda path, request: None
    after_body: Callable[[str, int], None] = lambda path, request: None


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    """Serve a `Site` while the block runs."""
    site = Site()
    counts: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            span = self.headers.get("Range", "")
            site.asked.append(f"{self.command} {self.path} {span}".strip())
            counts[self.path] = counts.get(self.path, 0) + 1
            request = counts[self.path]
            if status := site.fail(self.path, request):
                self.send_error(status)
                return
            content = site.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            # Without a Last-Modified of ours nobody can know that a part is of this file.
            ranged = span and site.ranges and "If-Range" not in self.headers
            start = int(span.removeprefix("bytes=").rstrip("-")) if ranged else 0
            self.send_response(206 if start else 200)
            if start:
                self.send_header(
                    "Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}"
                )
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("Content-Type", site.types.get(self.path, "text/html"))
            self.end_headers()
            if not body:
                return
            limit = site.break_after(self.path, request)
            rest = content[start:]
            self.wfile.write(rest if limit is None else rest[:limit])
            site.after_body(self.path, request)
            if limit is not None and limit < len(rest):
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
