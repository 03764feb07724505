"""The training loop: the same end whether interrupted or not, a log, an average, weights that fit their network."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

nnx = pytest.importorskip("flax.nnx")

from reproduction import training, weights  # noqa: E402
from reproduction.networks import MLP  # noqa: E402
from reproduction.training import Batches, averaged, shift_and_flip, train, train_module  # noqa: E402

pytestmark = pytest.mark.reproduction
rng = np.random.default_rng(0)
X = rng.standard_normal((70, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 0.5], np.float32)
DATA = {"x": X, "y": Y}


def step(state, batch, key):
    """Noisy gradient descent on a linear regression: the noise shows whether the key is the same."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(state["w"])
    noise = 0.01 * jax.random.normal(key, gradient.shape)
    return {"w": state["w"] - 0.1 * gradient + noise, "steps": state["steps"] + 1}, {"loss": loss}


def start():
    return {"w": np.zeros(3, np.float32), "steps": np.int32(0)}


def test_an_interrupted_training_goes_on_to_the_same_end(tmp_path):
    whole = train(step, start(), DATA, steps=40, batch=16, seed=5)
    calls = []

    def stop_at_17(rng, batch):
        calls.append(1)
        if len(calls) == 18:
            raise KeyboardInterrupt
        return batch

    with pytest.raises(KeyboardInterrupt):
        train(step, start(), DATA, steps=40, batch=16, seed=5, folder=tmp_path, log_every=4, augment=stop_at_17)
    assert len(calls) == 18
    resumed = train(step, start(), DATA, steps=40, batch=16, seed=5, folder=tmp_path, log_every=4)
    assert int(resumed["steps"]) == 40
    np.testing.assert_array_equal(resumed["w"], whole["w"])
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(4, 41, 4))
    assert lines[-1]["loss"] < lines[0]["loss"]
    again = train(step, start(), DATA, steps=40, batch=16, seed=5, folder=tmp_path)
    np.testing.assert_array_equal(again["w"], whole["w"])


def test_another_seed_is_another_training_and_the_same_seed_the_same():
    first, second, same = (train(step, start(), DATA, steps=10, batch=16, seed=s)["w"] for s in (0, 1, 0))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, same)


@pytest.mark.parametrize("name", ["steps", "batch", "seed"])
def test_a_folder_is_not_resumed_with_other_settings(tmp_path, name):
    options = {"steps": 4, "batch": 16, "seed": 0}
    train(step, start(), DATA, folder=tmp_path, **options)
    with pytest.raises(ValueError, match=rf"holds a training with {name}=\d+, not {name}=9: .*another folder"):
        train(step, start(), DATA, folder=tmp_path, **(options | {name: 9}))


def test_a_folder_of_another_network_is_refused(tmp_path):
    train(step, start(), DATA, steps=4, batch=16, folder=tmp_path)
    with pytest.raises(ValueError, match="another network or optimizer: name another folder"):
        train(step, {"v": np.zeros(2, np.float32)}, DATA, steps=4, batch=16, folder=tmp_path)


def test_a_loss_that_is_not_finite_stops_the_training_and_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)

    def blow_up(state, batch, key):
        new, metrics = step(state, batch, key)
        return new, {"loss": jnp.where(state["steps"] >= 6, jnp.nan, metrics["loss"])}

    with pytest.raises(FloatingPointError, match=r"not finite at step 8 .*lower the learning rate"):
        train(blow_up, start(), DATA, steps=20, batch=16, folder=tmp_path, log_every=2)
    kept, at = training.Checkpoints(tmp_path, {"steps": 20, "batch": 16, "seed": 0, "examples": 70}).restore(start())
    assert at == 6
    assert np.isfinite(kept["w"]).all()


def test_every_example_is_seen_once_in_an_epoch():
    batches = Batches(np.arange(64), 16, seed=0)
    first = np.concatenate([batches[t] for t in range(4)])
    second = np.concatenate([batches[t] for t in range(4, 8)])
    assert sorted(first) == sorted(second) == list(range(64))
    assert not np.array_equal(first, second)


def test_the_average_of_weights_is_exponential():
    module = nnx.Linear(3, 1, use_bias=False, rngs=nnx.Rngs(0))
    initial = np.asarray(module.kernel[...])
    loss = lambda module, batch, key: jnp.mean((module(batch["x"])[:, 0] - batch["y"]) ** 2)  # noqa: E731
    options = {"optimizer": optax.sgd(0.1), "batch": 70, "seed": 0}
    path = [initial]
    for steps in (1, 2, 3):
        current = nnx.Linear(3, 1, use_bias=False, rngs=nnx.Rngs(0))
        path.append(np.asarray(train_module(current, loss, DATA, steps=steps, **options).kernel[...]))
    mean = initial
    for weights_then in path[1:]:
        mean = averaged(mean, weights_then, 0.5)
    train_module(module, loss, DATA, steps=3, average=0.5, **options)
    np.testing.assert_allclose(np.asarray(module.kernel[...]), mean, rtol=1e-5)


def test_batch_statistics_are_trained_and_then_stand_still():
    module = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.BatchNorm(4, rngs=nnx.Rngs(0)))
    train_module(module, lambda m, b, key: jnp.mean(m(b["x"]) ** 2), DATA, optimizer=optax.sgd(0.0), steps=3, batch=70)
    statistics = np.asarray(module.layers[1].mean[...])
    assert np.abs(statistics).max() > 0
    assert module.layers[1].use_running_average
    module(X)
    np.testing.assert_array_equal(np.asarray(module.layers[1].mean[...]), statistics)


def test_augmentation_moves_and_mirrors_whole_images():
    images = np.zeros((200, 12, 12, 1), np.float32)
    images[:, 5, 4] = 1
    moved = shift_and_flip(np.random.default_rng(0), {"images": images, "labels": np.arange(200)})
    assert moved["images"].shape == images.shape
    np.testing.assert_array_equal(moved["labels"], np.arange(200))
    places = {tuple(np.argwhere(image[..., 0] == 1)[0]) for image in moved["images"] if image.any()}
    assert len(places) > 40
    assert images[0, 5, 4] == 1, "the data are not touched"


# --- weights ---------------------------------------------------------------------------------------------------------


def network(hidden=4):
    return MLP(6, hidden, 2, rngs=nnx.Rngs(0))


def test_weights_come_back_with_their_facts(tmp_path):
    path = weights.save(tmp_path / "w.safetensors", network(), {"seed": 7, "command": "make it"})
    other = MLP(6, 4, 2, rngs=nnx.Rngs(1))
    loaded, facts = weights.load(path, other)
    assert facts == {"seed": 7, "command": "make it"}
    images = rng.standard_normal((5, 6)).astype(np.float32)
    np.testing.assert_array_equal(loaded(images), network()(images))
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_weights_of_another_network_are_refused(tmp_path):
    path = weights.save(tmp_path / "w.safetensors", network(), {})
    with pytest.raises(ValueError, match=r"'dense1/bias' has shape \(4,\) in the file and \(9,\) here"):
        weights.load(path, network(9))
    with pytest.raises(ValueError, match=r"another network: 'bias' is not in the file"):
        weights.load(path, nnx.Linear(2, 3, rngs=nnx.Rngs(0)))


def test_damaged_weights_are_named(tmp_path):
    path = weights.save(tmp_path / "w.safetensors", network(), {})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"w.safetensors is damaged or no safetensors file"):
        weights.load(path, network())


def test_weights_of_an_equinox_module_come_back(tmp_path):
    eqx = pytest.importorskip("equinox")
    first, second = (eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(seed)) for seed in (0, 1))
    path = weights.save(tmp_path / "w.safetensors", first, {})
    loaded, _ = weights.load(path, second)
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(loaded(x), first(x))
