"""Results as JSON files: whole, or as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nfk.atomic import write_atomically


def write_json(path: Path, content: Any) -> Path:
    """Write `content` to `path` in one step; its folder is made where it is not there."""
    text = json.dumps(content, indent=1) + "\n"

    def write(partial: Path) -> None:
        partial.write_text(text)

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)
    return path
