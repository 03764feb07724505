"""The table of results/minilm.json."""

from __future__ import annotations

import textwrap

import numpy as np

from benchmarks.report_tasks import head

NAMES = {
    "fisher": "`nfk.torch.encoder`, one layer", "lsa": "LSA of the words",
    "pca of activations": "PCA of the activations", "activations": "the encoder's own embedding",
}  # fmt: skip
TIMED = ("fit", "embed")


def table(results: dict) -> str:
    """results/minilm.json in the documentation."""
    if not results:
        return "Not measured yet: `python -m benchmarks.minilm`.\n"
    rows, rank = results["rows"], results["rank"]
    lines = head("features", "numbers for each sentence", "test accuracy, %")
    for name, label in NAMES.items():
        found = 100 * np.array([row["accuracy"][name] for row in rows])
        size = 384 if name == "activations" else rank
        lines.append(f"| {label} | {size} | {found.mean():.1f} ± {found.std(ddof=1):.1f} |")
    count, fit, embed = results["labelled"], *(np.median([row["seconds"][name] for row in rows]) for name in TIMED)
    text = (
        f"Mean and standard deviation, {len(rows)} draws of {count} labelled and {results['tested']:,} test sentences."
        f" All bases are fitted on the {count} sentences. The probe's strength, and whether features are standardised, "
        f"is chosen by cross-validation on their labels. {rows[0]['trainable']:,} parameters take part. A fit took "
        f"{fit:.0f} s and {results['tested']:,} embeddings {embed:.0f} s, on a core that others used too. "
        "`python -m benchmarks.minilm` measures it."
    )
    return "\n".join([*lines, "", *textwrap.wrap(text, 120), ""])
