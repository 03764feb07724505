"""A virtual environment for each contestant's packages, made once: .venv-peers/NAME."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.registry import ENVIRONMENTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-peers"


def python(name: str, folder: Path = FOLDER) -> Path:
    """The interpreter of an environment; makes it where it is missing or was made of other packages."""
    home, packages = folder / name, ENVIRONMENTS[name]
    ready, contents = home / "ready", "\n".join(packages) + "\n"
    interpreter = home / "bin" / "python"
    if ready.exists() and ready.read_text() == contents:
        return interpreter
    print(f"making {home}: {' '.join(packages)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    install = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(install, check=True, cwd=ROOT)
    ready.write_text(contents)
    return interpreter
