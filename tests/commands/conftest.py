"""The command `nfk` in this process: its exit code, what it says on either stream, and a small model in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nfk.cli.app import main

MODEL = """
import jax.numpy as jnp
import numpy as np
import nfk

rng = np.random.default_rng(0)
PARAMS = {
    "first": rng.standard_normal((6, 9)).astype("float32"),
    "second": rng.standard_normal((9, 3)).astype("float32"),
}

def logits(params, x):
    return jnp.tanh(x.reshape(-1)[:6] @ params["first"]) @ params["second"]

def model():
    return nfk.classifier(logits, PARAMS)

def several():
    return nfk.network(logits, PARAMS)

def tokens(texts):
    return np.array([[len(word) for word in (text.split() + [""] * 6)[:6]] for text in texts], "float32")

def letters(texts):
    return [1 / 0 for text in texts]

def nothing():
    return "a string"

def broken():
    raise KeyError("weights")

number = 3
ready = model()
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def facts(self) -> Any:
        """The one JSON object on standard output."""
        return json.loads(self.out)


@pytest.fixture
def nfk_command(capsys):
    """nfk_command("fit", ...) -> Done"""

    def run(*arguments: object) -> Done:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code or 0
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder to work in, with a model, examples and their labels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "mine.py").write_text(MODEL)
    rng = np.random.default_rng(1)
    y = np.arange(40) % 2
    X = (rng.standard_normal((40, 6)) + 3 * y[:, None]).astype("float32")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "new.npy", X[:7] + 1)
    return tmp_path


@pytest.fixture
def fitted(here, nfk_command) -> Path:
    """`here`, with a run of it."""
    done = nfk_command("fit", "mine.py:model", "x.npy", "--rank", 4, "--labels", "y.npy")
    assert (done.code, done.err) == (0, "")
    return here
