"""Write the README's table of results from results/core.json: `python -m benchmarks.report`."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS, README = ROOT / "results" / "core.json", ROOT / "README.md"
MARKS = re.compile(r"(<!-- results:core -->\n).*?(<!-- /results:core -->)", re.DOTALL)


def table(results: dict) -> str:
    """The figures of the core as Markdown."""
    accuracy, speed, embedding, scaling = (results[name] for name in ("accuracy", "speed", "embedding", "scaling"))
    ours, _, paper = accuracy["rows"]
    env = results["environment"]
    lines = [
        f"On {env['cores']} CPU cores, float32, jax {env['jax']}, seed {env['seed']}. `make bench` writes these",
        "figures to `results/core.json` and this table from them.",
        "",
        "| what | nfk | the paper's algorithm |",
        "|---|---|---|",
        f"| worst relative error of the top {accuracy['rank']} eigenvalues, {accuracy['network']}, "
        f"{accuracy['examples']:,} MNIST images, against exact float64 | **{ours['worst_relative_error']:.1e}** | "
        f"{paper['worst_relative_error']:.1e} |",
        f"| passes over the gradients for it, moments and certificate included | {ours['passes']} | "
        f"{paper['passes']} |",
    ]
    for row in speed["rows"]:
        lines.append(
            f"| seconds of a fit, discriminator of {speed['parameters']:,} parameters, {speed['examples']:,} images, "
            f"k = {row['rank']} | {row['nfk_seconds']:.0f} (**{row['times_faster']:.0f} times faster**; with gradients "
            f"recomputed in each pass {row['nfk_seconds_gradients_recomputed']:.0f}, "
            f"{row['times_faster_gradients_recomputed']:.0f} times) | "
            f"{row['paper_seconds_projected']:,.0f}, projected |"
        )
        lines.append(
            f"| worst relative error of the top {row['rank']} eigenvalues there, against the float64 Gram "
            f"matrix of the same rows | "
            f"{row['nfk_worst_relative_error']:.1e} | {row['paper_worst_relative_error']:.1e} |"
        )
    smallest, largest = scaling["rows"][0]["examples"], scaling["rows"][-1]["examples"]
    lines += [
        f"| embedding new examples at k = {embedding['rank']}, in plain batch gradients over the same examples | "
        f"{embedding['ratio']:.2f} | - |",
        f"| growth of time with N, log-log slope from {smallest:,} to {largest:,}, {scaling['network']} | "
        f"{scaling['slope_of_time']:.2f} | - |",
        f"| largest over smallest peak memory in that range, beyond the data and the N x U numbers | "
        f"{scaling['largest_over_smallest_memory']:.2f} | - |",
        "",
        "The paper's algorithm is vmap of jvp and of vjp with 22 sweeps, L = 10. Single batches of it are timed, in",
        "turn with whole fits of ours, and its total is projected. Its accuracy is that of `method='power'`, the same",
        "iteration on the fast engine.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def updated(readme: str, results: dict) -> str:
    return MARKS.sub(lambda match: match[1] + table(results) + match[2], readme)


def main() -> None:
    README.write_text(updated(README.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
