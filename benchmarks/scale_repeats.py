"""The same fit many times, in each of several processes, for `benchmarks.scale`: `scale_repeats.py TIMES OUTPUT`."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np

import nfk
from benchmarks.scale_fit import problem

EXAMPLES = 32  # few: blocks are large all the same, and they are what is looked at


def main(times: int, output: Path) -> None:
    model, X, options = problem("gradients", EXAMPLES)
    found: list[str] = []
    for _ in range(times):
        fitted = nfk.fit(model, X, mesh=jax.device_count(), memory="2GB", progress=False, **options)
        parts = (fitted.moments.mean, fitted.moments.scale, fitted.eigenvalues, fitted.training, fitted.residuals)
        found.append(hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest())
        if jax.process_index() == 0:
            facts = {"parameters": model.layout.size, "examples": EXAMPLES, "columns": fitted.plan.width}
            differed = sum(one != found[0] for one in found)
            output.write_text(json.dumps({**facts, "fits": len(found), "differed": differed}))
            print(found[-1][:12], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
