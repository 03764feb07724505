"""Who takes part, in which environment, and at which kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CONTESTANTS = Path(__file__).parent / "contestants"
TORCH = "torch==2.13.0"  # named with what needs it, so that no package chooses another

ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "torch": (TORCH, "numpy"),
    "nfk": ("--editable", ".", TORCH),
    "neural-tangents": (
        "neural-tangents==0.6.5", "jax==0.4.25", "jaxlib==0.4.25", "numpy<2", "scipy<1.13", "scikit-learn",
    ),
    "curvlinops": (TORCH, "curvlinops-for-pytorch", "scipy"),
    "nngeometry": (TORCH, "nngeometry"),
    "matfree": ("jax", "matfree"),
}  # fmt: skip


@dataclass(frozen=True)
class Contestant:
    """A program of `contestants/`. `plain_only`: it can only do the kernel without mean and Fisher scale."""

    title: str
    program: str
    environment: str
    plain_only: bool = False
    setting: str = "tol"  # what stands behind the @ of its name
    embeds: bool = False  # it also maps new examples, which a probe then reads

    @property
    def lines(self) -> int:
        return lines_of_user((CONTESTANTS / f"{self.program}.py").read_text())


def lines_of_user(source: str) -> int:
    """Lines between `# user: begin` and `# user: end`, without blanks, comments, docstrings and the stopwatch."""
    regions = re.findall(r"# user: begin\n(.*?)# user: end", source, re.DOTALL)
    lines = [line.strip() for region in regions for line in region.splitlines()]
    return sum(bool(line) and not line.startswith(("#", '"""', "watch.")) for line in lines)


REGISTRY: dict[str, Contestant] = {
    "script": Contestant("PyTorch script", "script", "torch"),
    "nfk": Contestant("nfk", "nfk_jax", "nfk", embeds=True),
    "nfk-torch": Contestant("nfk, PyTorch module", "nfk_torch", "nfk", embeds=True),
    "paper": Contestant("the paper's algorithm", "paper", "nfk"),
    "curvlinops": Contestant("curvlinops and SciPy's svds", "curvlinops_scipy", "curvlinops"),
    "matfree": Contestant("matfree's Golub-Kahan-Lanczos", "matfree_lanczos", "matfree"),
    "neural-tangents": Contestant(
        "neural-tangents and TruncatedSVD", "neural_tangents_svd", "neural-tangents", plain_only=True
    ),
    "nngeometry": Contestant("nngeometry's Gram matrix", "nngeometry_gram", "nngeometry", plain_only=True),
    "projection": Contestant("random projection", "projection", "torch", setting="numbers", embeds=True),
    "floor-torch": Contestant("floor, PyTorch", "floor_torch", "torch"),
    "floor-jax": Contestant("floor, JAX", "floor_jax", "nfk"),
}
