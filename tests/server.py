"""A web server on this machine, with the faults of real ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Remote:
    """A file on the server and how it is served; `asked` counts the requests by their paths."""

    content: bytes
    cuts: list[int] = field(default_factory=list)  # bytes sent before the connection ends, one number a request
    errors: list[int] = field(default_factory=list)  # answered before anything else, one a request
    held: threading.Event | None = None  # the second half waits for it
    asked: list[str] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        remote: Remote = self.server.remotes[self.path]  # type: ignore[attr-defined]
        remote.asked.append(self.path)
        if remote.errors:
            return self.send_error(remote.errors.pop(0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(remote.content)))
        self.end_headers()
        self._send(remote, remote.content)

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
