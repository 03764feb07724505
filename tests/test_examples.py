"""Every script in `examples/` runs, at a small size, and prints what it promises; each fits on a screen or two."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
PRINTED = {
    "classifier_torchvision_style": r"numbers for each image hold",
    "diffusion": "the spectrum falls from",
    "gan": "the image least like the others",
    "gpt2": "the sentence nearest to sentence 0",
    "minilm": "labels: ",
    "my_flax_model": "images as an array of shape (24, 4)",
    "scikit_learn_pipeline": "components: ",
    "vae": "of the first component lives in",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_runs(script, monkeypatch, capsys):
    source = script.read_text()
    if "torch" in source:
        pytest.importorskip("torch")
    assert len(source.splitlines()) <= 70
    monkeypatch.setattr(sys, "argv", [str(script), "--smoke"])
    runpy.run_path(str(script), run_name="__main__")
    assert PRINTED[script.stem] in capsys.readouterr().out
