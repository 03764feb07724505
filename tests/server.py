"""A web server on this machine, with the faults of real ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Remote:
    """A file on the server and how it is served; `asked` keeps the Range of every request."""

    content: bytes
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes sent before the connection ends, one number a request
    changes_to: bytes | None = None  # the content after the first request
    errors: list[int] = field(default_factory=list)  # answered before anything else, one a request
    held: threading.Event | None = None  # the second half waits for it
    asked: list[str | None] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        remote: Remote = self.server.remotes[self.path]  # type: ignore[attr-defined]
        span = self.headers.get("Range")
        remote.asked.append(span)
        if remote.errors:
            return self.send_error(remote.errors.pop(0))
        content = remote.content
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span and remote.ranges else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self._send(remote, content[start:])

    def _send(self, remote: Remote, body: bytes) -> None:
        sent = remote.cuts.pop(0) if remote.cuts else len(body)
        half = sent // 2
        self.wfile.write(body[:half])
        if remote.held is not None:
            self.wfile.flush()
            remote.held.wait(20)
        try:
            self.wfile.write(body[half:sent])
        except ConnectionError:  # the client was killed
            return
        remote.content = remote.changes_to or remote.content

    def log_message(self, *args: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def serving(**remotes: Remote) -> Iterator[str]:
    """The address below which each remote is served under its name."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.remotes = {f"/{name}": remote for name, remote in remotes.items()}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
