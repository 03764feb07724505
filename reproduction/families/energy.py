"""JEM on 14 x 14 MNIST: a classifier trained jointly as an energy model, with Langevin chains and a replay buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import nfk
from nfk.sampling import langevin_step
from reproduction.data import Split, digits
from reproduction.families.family import Family, halved
from reproduction.networks.energy import EnergyNetwork
from reproduction.training import State, accuracy, cross_entropy, in_batches, train

BUFFER, RESTART, CHAIN = 10_000, 0.05, 20
STEP, TEMPERATURE, NOISE = 0.25, 5e-5, 0.015  # on [0, 1]; JEM's 1 and 0.03 are on [-1, 1]
PULL, LARGEST = 0.1, 0.2  # towards E = 0, and the largest drift: without both, this network's energies ran away


class Energy(Family):
    """E(x) = -logsumexp_y f_y(x); expectations over the data, as in the paper."""

    name, network, data = "energy", "JEM", "mnist"
    steps = 1_500

    def examples(self, data: Split) -> np.ndarray:
        return halved(data.images)

    def build(self, seed: int) -> EnergyNetwork:
        return EnergyNetwork(rngs=nnx.Rngs(seed))

    def train(self, network: Any, train_data: Split, seed: int, folder: Path | None) -> Any:
        """min  cross-entropy + E(data) - E(chain) + pull (E(data)^2 + E(chain)^2), the chains persistent."""
        definition, params = nnx.split(network)
        params = nnx.to_pure_dict(params)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(0, 2e-4, 200)))

        def run_chain(params: Any, start: jax.Array, key: jax.Array) -> jax.Array:
            move = step_of(nnx.merge(definition, params))
            return jax.lax.fori_loop(0, CHAIN, lambda i, x: move(x, jax.random.fold_in(key, i)), start)

        def step(state: State, batch: dict, key: jax.Array) -> tuple[State, dict]:
            count = len(batch["images"])
            rows_key, again_key, fresh_key, chain_key, noise_key = jax.random.split(key, 5)
            rows = jax.random.choice(rows_key, BUFFER, (count,), replace=False)
            again = jax.random.bernoulli(again_key, RESTART, (count, 1, 1, 1))
            fresh = jax.random.uniform(fresh_key, batch["images"].shape)
            samples = run_chain(state["params"], jnp.where(again, fresh, state["buffer"][rows]), chain_key)
            noisy = batch["images"] + NOISE * jax.random.normal(noise_key, fresh.shape)

            def loss(params: Any) -> tuple[jax.Array, tuple]:
                module = nnx.merge(definition, params)
                data, chain = module.energy(noisy), module.energy(samples)
                gap, size = data.mean() - chain.mean(), (data**2).mean() + (chain**2).mean()
                labels = cross_entropy(module, batch, key)
                return labels + gap + PULL * size, (labels, gap)

            (_, (labels, gap)), gradient = jax.value_and_grad(loss, has_aux=True)(state["params"])
            update, memory = optimizer.update(gradient, state["optimizer"])
            params = optax.apply_updates(state["params"], update)
            buffer = state["buffer"].at[rows].set(samples)
            return {"params": params, "optimizer": memory, "buffer": buffer}, {"labels": labels, "energy_gap": gap}

        start = np.random.default_rng(seed).random((BUFFER, 14, 14, 1), dtype=np.float32)
        state = {"params": params, "optimizer": optimizer.init(params), "buffer": start}
        arrays = {"images": self.examples(train_data), "labels": train_data.labels}
        options: dict[str, Any] = dict(steps=self.steps, batch=64, seed=seed, folder=folder, name=self.label)
        nnx.update(network, train(step, state, arrays, **options)["params"])
        return network

    def metric(self, network: EnergyNetwork, test: Split) -> tuple[str, float]:
        return "accuracy", accuracy(network, Split(self.examples(test), test.labels))

    def model(self, network: EnergyNetwork) -> nfk.Model:
        return nfk.energy(*nfk.from_nnx(network, method="energy"))

    def activations(self, network: EnergyNetwork, X: np.ndarray) -> np.ndarray:
        return in_batches(network.features, X)

    def samples(self, network: EnergyNetwork, key: jax.Array, count: int) -> np.ndarray:
        """Long chains from noise."""
        start_key, chain_key = jax.random.split(key)
        move = step_of(network)
        start = jax.random.uniform(start_key, (count, 14, 14, 1))
        run = jax.jit(lambda x: jax.lax.fori_loop(0, 600, lambda i, x: move(x, jax.random.fold_in(chain_key, i)), x))
        return np.asarray(run(start))


class EnergyOverSamples(Energy):
    """The same network, expectations over Langevin samples in the box of the pixels instead of over the data."""

    network = "JEM, Langevin samples"

    def model(self, network: EnergyNetwork) -> nfk.Model:
        energy, params = nfk.from_nnx(network, method="energy")
        starts = self.examples(digits()[0])
        chains = nfk.langevin(nfk.energy(energy, params), starts, steps=100, step_size=0.02, temperature=5e-4)
        return nfk.energy(energy, params, sample=chains, samples=1024)


def step_of(network: Any) -> Any:
    """One step of JEM's chain, its drift bounded in every pixel."""
    gradient = jax.grad(lambda x: -network.energy(x).sum())
    return langevin_step(lambda x: jnp.clip(gradient(x), -LARGEST, LARGEST), STEP, TEMPERATURE, 0.0, 1.0)
