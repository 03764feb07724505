"""A DCGAN on MNIST and a spectral-normalised GAN on CIFAR-10, and how a GAN is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import nfk
from reproduction.data import Split
from reproduction.families.family import Family
from reproduction.networks.gans import DCGANCritic, Generator, SpectralCritic, pooled
from reproduction.training import State, averaged, in_batches, train


class GAN(nnx.Module):
    """A critic and its generator."""

    def __init__(self, critic: Any, generator: Any) -> None:
        self.critic, self.generator = critic, generator
        self.eval()


class DigitGAN(Family):
    """The paper's discriminator of 16,871 parameters, expectations over the generator's samples."""

    name, network, data = "gan", "DCGAN", "mnist"
    steps = 10_000

    def build(self, seed: int) -> GAN:
        rngs = nnx.Rngs(seed)
        return GAN(DCGANCritic(rngs=rngs), Generator(rngs=rngs))

    def train(self, network: GAN, train: Split, seed: int, folder: Path | None) -> GAN:
        options: dict[str, Any] = dict(steps=self.steps, batch=64, seed=seed, folder=folder, name=self.label)
        train_gan(network.critic, network.generator, self.examples(train), **options)
        return network

    def metric(self, network: GAN, test: Split) -> tuple[str, float]:
        """How often the critic puts a test image above a generated one, over all pairs; 0.5 when it cannot tell."""
        real = in_batches(network.critic, self.examples(test))
        fake = in_batches(network.critic, self.samples(network, jax.random.key(1), 2000))
        return "critic's AUROC, real against generated", float(np.mean(real[:, None] > fake[None, :]))

    def model(self, network: GAN) -> nfk.Model:
        generate = nnx.jit(lambda generator, latents: generator(latents))
        latents = network.generator.latents

        def sample(key: jax.Array, count: int) -> jax.Array:
            return generate(network.generator, jax.random.normal(key, (count, latents)))

        return nfk.gan(*nfk.from_nnx(network.critic), sample=sample)

    def activations(self, network: GAN, X: np.ndarray) -> np.ndarray:
        return in_batches(lambda images: pooled(network.critic.maps(images)), X)

    def samples(self, network: GAN, key: jax.Array, count: int) -> np.ndarray:
        return in_batches(network.generator, np.asarray(jax.random.normal(key, (count, network.generator.latents))))


class PhotoGAN(DigitGAN):
    """A small relative of the paper's 5.9-million-parameter network (`networks.residual_gan`), on colour images."""

    name, network, data = "gan", "SN-DCGAN", "cifar10"
    steps, rows, test_rows = 1_200, 3_000, 2_000

    def build(self, seed: int) -> GAN:
        rngs = nnx.Rngs(seed)
        return GAN(SpectralCritic(16, rngs=rngs), Generator(128, 32, 3, 32, rngs=rngs))


def train_gan(
    critic: Any, generator: Any, images: np.ndarray, *, average: float = 0.999, rates: tuple = (4e-4, 2e-4), **options
) -> tuple[Any, Any]:
    """Hinge loss, two time scales; trains both networks in place. The generator gets the average of its weights.

    critic:    min  E max(0, 1 - D(x)) + E max(0, 1 + D(G(h)))
    generator: min  -E D(G(h))
    """
    critic.train()
    generator.train()
    networks = {"critic": critic, "generator": generator}
    optimizers = {
        "critic": optax.adam(rates[0], b1=0.0, b2=0.999), "generator": optax.adam(rates[1], b1=0.0, b2=0.999)
    }  # fmt: skip
    definitions, state = {}, {}
    for name, module in networks.items():
        definitions[name], params, rest = nnx.split(module, nnx.Param, ...)
        params = nnx.to_pure_dict(params)
        memory = optimizers[name].init(params)
        state[name] = {"params": params, "rest": nnx.to_pure_dict(rest), "optimizer": memory}
    state["mean"] = state["generator"]["params"]
    merge = lambda name, params, rest: nnx.merge(definitions[name], params, rest)  # noqa: E731
    rest_of = lambda module: nnx.to_pure_dict(nnx.state(module, nnx.Not(nnx.Param)))  # noqa: E731

    def updated(name: str, own: State, gradient: Any, rest: Any) -> State:
        update, memory = optimizers[name].update(gradient, own["optimizer"], own["params"])
        return {"params": optax.apply_updates(own["params"], update), "rest": rest, "optimizer": memory}

    def critic_step(state: State, real: jax.Array, fake: jax.Array) -> tuple[jax.Array, State]:
        own = state["critic"]

        def loss(params: Any) -> tuple[jax.Array, Any]:
            module = merge("critic", params, own["rest"])
            value = jnp.maximum(0, 1 - module(real)).mean() + jnp.maximum(0, 1 + module(fake)).mean()
            return value, rest_of(module)

        (value, rest), gradient = jax.value_and_grad(loss, has_aux=True)(own["params"])
        return value, updated("critic", own, gradient, rest)

    def generator_step(state: State, latents: jax.Array) -> tuple[jax.Array, State, jax.Array]:
        own, other = state["generator"], state["critic"]

        def loss(params: Any) -> tuple[jax.Array, Any]:
            module = merge("generator", params, own["rest"])
            fake = module(latents)
            return -merge("critic", other["params"], other["rest"])(fake).mean(), (rest_of(module), fake)

        (value, (rest, fake)), gradient = jax.value_and_grad(loss, has_aux=True)(own["params"])
        return value, updated("generator", own, gradient, rest), fake

    def step(state: State, real: jax.Array, key: jax.Array) -> tuple[State, dict]:
        latents = jax.random.normal(key, (len(real), generator.latents))
        loss_g, new_generator, fake = generator_step(state, latents)
        loss_d, new_critic = critic_step(state, real, jax.lax.stop_gradient(fake))
        mean = averaged(state["mean"], new_generator["params"], average)
        return {"critic": new_critic, "generator": new_generator, "mean": mean}, {"critic": loss_d, "generator": loss_g}

    state = train(step, state, images, **options)
    nnx.update(critic, state["critic"]["params"], state["critic"]["rest"])
    nnx.update(generator, state["mean"], state["generator"]["rest"])
    _settle(generator)
    critic.eval()
    generator.eval()
    return critic, generator


def _settle(generator: Any, batches: int = 40) -> None:
    """Batch statistics that belong to the averaged weights: those of the last steps belong to the last weights."""
    generator.train()
    forward = nnx.jit(lambda module, latents: module(latents))
    for index in range(batches):
        forward(generator, jax.random.normal(jax.random.key(index), (256, generator.latents)))
