"""The command in a terminal of its own: what a person sees, and Ctrl-C as a terminal sends it."""

from __future__ import annotations

import os
import pty
import select
import sys
import time

import numpy as np
import pyte
import pytest

SLOW = """
import time
import jax
import jax.numpy as jnp
import numpy as np
import nfk

def rest(value):
    time.sleep(0.01)  # so that there is something to see, and to interrupt
    return np.float32(0)

def nothing(x):
    return jax.pure_callback(rest, jax.ShapeDtypeStruct((), "float32"), x[0], vmap_method="sequential")

def model():
    params = np.random.default_rng(0).standard_normal((6, 9)).astype("float32")
    return nfk.energy(lambda params, x: jnp.sum(jnp.tanh(x @ params)) * (1 + nothing(x)), params)
"""


class Terminal:
    """A program in a pseudo-terminal, and its screen."""

    def __init__(self, command: list[str], columns: int = 100, lines: int = 30) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.environ |= {"COLUMNS": str(columns), "LINES": str(lines), "TERM": "xterm-256color"}
            os.execv(command[0], command)
        self.seen = ""

    def until(self, text: str | None, seconds: float = 60) -> bool:
        """Read until the text is on the screen, or the program has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self._file], [], [], 0.1)[0]:
                try:
                    data = os.read(self._file, 65536)
                except OSError:
                    data = b""
                if not data:
                    return text is None
                self._stream.feed(data)
                self.seen += data.decode(errors="replace")
                if text is not None and text in "\n".join(self.screen.display):
                    return True
        return False

    def press(self, key: bytes) -> None:
        os.write(self._file, key)

    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def slow(here):
    (here / "slow.py").write_text(SLOW)
    np.save("many.npy", np.random.default_rng(0).standard_normal((500, 6)).astype("float32"))
    return here


def test_progress_is_drawn_and_ctrl_c_says_how_to_go_on(slow):
    fit = ["fit", "slow.py:model", "many.npy", "--rank", "4", "--method", "krylov"]
    terminal = Terminal([sys.executable, "-m", "nfk", *fit], columns=160)
    assert terminal.until("pass "), terminal.seen
    terminal.press(b"\x03")
    assert terminal.until(None)
    said = " ".join("\n".join(terminal.screen.display).split())
    assert terminal.exit_code() == 130
    assert "interrupted" in said
    assert "nfk fit slow.py:model many.npy --output run --rank 4 --method krylov --force" in said
    assert "Traceback" not in said
