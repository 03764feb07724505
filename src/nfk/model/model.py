"""A trained network read as a density: which score, and over what its mean and Fisher information are taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from nfk.layout import Layout
from nfk.model.interface import Example, Network, NetworkChanged, NotAScore, Params

Sampler = Callable[[jax.Array, int], Any]
Fisher = Literal["diagonal", "identity"]
Expectation = Literal["model", "data"]


@dataclass(frozen=True, eq=False)
class Model:
    """A log-density up to a constant, the score of `network`, and how its moments are taken."""

    family: str
    network: Network
    sample: Sampler | None = None
    centred: bool = True
    fisher: Fisher = "diagonal"
    expectation: Expectation = "data"
    samples: int = 4096
    damping: float = 1e-4
    row_per_output: bool = False

    def __post_init__(self) -> None:
        if self.fisher not in ("diagonal", "identity"):
            raise ValueError(f"fisher={self.fisher!r} is unknown: choose 'diagonal' or 'identity'")
        if self.expectation not in ("model", "data"):
            raise ValueError(f"expectation={self.expectation!r} is unknown: choose 'model' or 'data'")
        if not isinstance(self.centred, bool):
            raise TypeError(f"centred={self.centred!r} must be True or False")
        if self.expectation == "model" and self.sample is None:
            raise ValueError(
                f"expectation='model' needs samples of the model: pass a function {self.network.sampler} -> n examples "
                "as sample=, or choose expectation='data'"
            )
        if not isinstance(self.samples, (int, np.integer)) or self.samples < 2:
            raise ValueError(f"samples={self.samples!r} must be a number of samples, at least 2 for a variance")
        if not isinstance(self.damping, (int, float, np.floating)) or not self.damping >= 0:
            raise ValueError(f"damping={self.damping!r} must be a number, 0 or more")

    def __deepcopy__(self, memo: dict) -> Model:
        return self  # nothing in it changes, so a copy (scikit-learn's clone makes one) may share it

    def __repr__(self) -> str:
        return (
            f"nfk.{self.family}({self.layout.size:,} parameters, centred={self.centred}, "
            f"fisher={self.fisher!r}, expectation={self.expectation!r})"
        )

    @property
    def layout(self) -> Layout:
        return self.network.layout

    @property
    def params(self) -> Params:
        return self.network.params

    @property
    def needs_moments(self) -> bool:
        return self.centred or self.fisher == "diagonal"

    @property
    def moments_over_data(self) -> bool:
        return self.needs_moments and self.expectation == "data"

    @property
    def unscaled(self) -> bool:
        """Whether its kernel is that of raw gradients, or of raw gradients about their mean over the same examples."""
        return self.fisher == "identity" and (not self.centred or self.expectation == "data")

    @property
    def random(self) -> bool:
        """Whether a fit depends on its key beyond rounding: by samples of the model, or by noise in the score."""
        return self.network.noise != "none" or (self.needs_moments and self.expectation == "model")

    def outputs(self, example: Example) -> int:
        """Rows per example (1 for a scalar score), after a trial evaluation of shapes on one example."""
        try:
            result = self.network.result(example)
        except (NotAScore, NetworkChanged):
            raise
        except Exception as error:
            shapes = jax.tree.map(np.shape, example)
            raise ValueError(
                f"nfk.{self.family} could not be evaluated on one example of shape {shapes}: {error}\n"
                "The function takes ONE example without a batch axis, and X[0] must be what it expects; wrap a network "
                f"for batches as {self.network.wrapping}"
            ) from error
        return self._outputs_of(result)

    def _outputs_of(self, result: Any) -> int:
        if not hasattr(result, "shape"):
            raise NotAScore(f"the function of nfk.{self.family} returned a {type(result).__name__}: return one array")
        if not jnp.issubdtype(result.dtype, jnp.floating):
            raise NotAScore(
                f"the score of nfk.{self.family} has dtype {result.dtype}: return floats, to have a gradient"
            )
        if self.row_per_output and len(result.shape) <= 1:
            return int(np.prod(result.shape))
        if self.row_per_output:
            raise NotAScore(f"apply returned shape {result.shape} for one example: return a vector of outputs")
        if result.shape != ():
            raise NotAScore(
                f"the score of nfk.{self.family} has shape {result.shape} for one example, but must be a scalar: "
                "index it ([0] for a batch or channel axis of one), sum it, or use nfk.network for one row per output"
            )
        return 1


def require_model(model: object) -> None:
    if any(base.__module__.startswith("torch.nn") for base in type(model).__mro__):
        raise TypeError(
            f"model is a {type(model).__name__}, a PyTorch module: say what its score is, as in "
            "nfk.torch.classifier(module.eval()); there are also nfk.torch.gan, energy, vae, density, diffusion, "
            "network, language_model, and encoder for what has neither labels nor a density"
        )
    if not isinstance(model, Model):
        raise TypeError(
            f"model is a {type(model).__name__}: wrap the network first, as in nfk.classifier(apply, params); there "
            "are also nfk.gan, nfk.energy, nfk.vae, nfk.density and nfk.network"
        )
