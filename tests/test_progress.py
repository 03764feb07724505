"""What a person sees: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pyte

SCRIPT = """
import time, numpy as np, jax.numpy as jnp, nfk, nfk.progress
nfk.progress.PATIENCE_SECONDS = 0.0
rng = np.random.default_rng(0)
params = {"w": rng.standard_normal((50, 80), dtype=np.float32) / 7}
model = nfk.energy(lambda p, x: jnp.sum(jnp.tanh(x @ p["w"])), params)
X = rng.standard_normal((3000, 50), dtype=np.float32)
class Slow:  # every pass takes long enough to be drawn
    def __len__(self):
        return len(X)
    def __getitem__(self, rows):
        time.sleep(0.01)
        return X[rows]
nfk.fit(model, Slow(), 10, method="krylov", keep=False)
print("finished")
"""


def run_in_terminal(script: str) -> tuple[pyte.Screen, str]:
    """The final screen of an 100 x 24 terminal, and all that was ever written to it."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
        close_fds=True,
    )
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        if not part:
            break
        written += part
    assert process.wait(timeout=60) == 0
    os.close(leader)
    screen = pyte.Screen(100, 24)
    pyte.ByteStream(screen).feed(written)
    return screen, written.decode(errors="replace")


def test_a_terminal_shows_the_pass_the_rate_and_the_residual_and_is_left_clean():
    screen, written = run_in_terminal(SCRIPT)
    for word in ("moments", "Krylov step", "certificate", "3000", "/s", "residual"):
        assert word in written, word
    assert [line.strip() for line in screen.display if line.strip()] == ["finished"]


def test_a_file_gets_nothing():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert result.stdout == "finished\n"
    assert result.stderr == ""
