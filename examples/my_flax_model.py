"""A classifier written in flax: `nnx.split` gives its parameters, and a function of them is all that nfk needs.

python examples/my_flax_model.py [--smoke]
"""

import sys

import jax
import numpy as np
from flax import nnx

import nfk


class Classifier(nnx.Module):
    def __init__(self, width: int, *, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, width, (3, 3), strides=2, rngs=rngs)
        self.head = nnx.Linear(16 * width, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.head(nnx.relu(self.conv(images)).reshape(len(images), -1))


def main(smoke: bool) -> None:
    module = Classifier(4 if smoke else 32, rngs=nnx.Rngs(0))
    structure, params = nnx.split(module)
    images = np.random.default_rng(0).standard_normal((24 if smoke else 1024, 8, 8, 1)).astype(np.float32)

    def apply(params, image):
        return nnx.merge(structure, params)(image[None])[0]

    model = nfk.classifier(apply, nnx.to_pure_dict(params))
    embedding = nfk.fit(model, images, rank=4 if smoke else 32)

    print(embedding)
    print(f"{len(images)} images as an array of shape {embedding(images).shape}")


if __name__ == "__main__":
    main("--smoke" in sys.argv)
