"""The command in a terminal of its own: what a person sees, and Ctrl-C as a terminal sends it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
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


# The first terminal that the leader of a session opens is the one whose Ctrl-C it gets.
OWN = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """A program in a pseudo-terminal, and its screen."""

    def __init__(self, command: list[str], columns: int = 100, lines: int = 30) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._file, inside = pty.openpty()
        size = {"COLUMNS": str(columns), "LINES": str(lines), "TERM": "xterm-256color"}
        self._program = subprocess.Popen(
            [sys.executable, "-c", OWN, *command], stdin=inside, stdout=inside, stderr=inside, env=os.environ | size,
            start_new_session=True,
        )  # fmt: skip
        os.close(inside)
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
        os.close(self._file)
        return self._program.wait()


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
