"""Networks that others trained: each is what its weights are known for, and weights that are not right are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import nfk
from reproduction import __main__ as entry
from reproduction import data
from reproduction.own import load as load_own
from reproduction.pretrained import NETWORKS, WeightsError, files, load, untrained
from reproduction.pretrained.measuring import KNOWN, PROBE, SCORE, measured

pytestmark = pytest.mark.reproduction
HERE = data.data_folder() is not None and (data.data_folder() / "pretrained").is_dir()
needs_weights = pytest.mark.skipif(not HERE, reason="needs NFK_DATA with pretrained/")
FEW = {"flow": 12, "autoregressive": 6, "generator": 400, "cifar10-dcgan-critic-wide": 600}  # images; 200 of others
SLACK = 1.6  # times the half interval of 95 %: twenty-two networks, and the images are the same for all
LOOSE = {SCORE: 1.0, PROBE: 0.3}  # figures that fall with the number of images: the full ones are in results/


@needs_weights
@pytest.mark.parametrize("name", NETWORKS)
def test_a_few_images_give_the_figure_that_the_weights_are_known_for(name):
    found = load(name)
    assert sum(part.numel() for part in found.module.parameters()) == found.network.parameters
    figures = measured(found, FEW.get(name, FEW.get(found.network.kind, 200)))
    for known in KNOWN.get(name, ()):
        estimate = figures[known.figure]
        half = SLACK * (estimate.high - estimate.low) / 2 + known.rounding
        assert abs(estimate.value - known.value) <= LOOSE.get(known.figure, half), str(estimate)


SCORES = {
    "classifier": lambda module, x: torch.logsumexp(module(x)[0], 0), "critic": lambda module, x: module(x).squeeze(),
    "energy": lambda module, x: module(x).squeeze(), "autoregressive": lambda module, x: module(x).squeeze(),
}  # fmt: skip
ARCHITECTURES = (
    "cifar10-wrn-16-1-b", "cifar10-resnet20", "cifar10-resnet-small", "cifar10-dcgan-critic",
    "cifar10-dcgan-critic-wide", "mnist-wgan-gp-critic", "mnist-gan-critic", "mnist-lenet5", "mnist-energy",
)  # fmt: skip


@needs_weights
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_its_kernel_through_nfk_torch_is_that_of_the_gradients_of_its_score(name):
    """Against plain autograd, with the identity in place of the Fisher matrix."""
    found = load(name)
    inputs = found.inputs(data.load(found.network.data, "test").images[:2])
    K = nfk.fit(found.model(expectation="data", fisher="identity", centred=False), inputs, 1).gram(inputs)
    parameters = list(found.module.parameters())
    score = SCORES[found.network.kind]
    made = [torch.autograd.grad(score(found.module, x[None]), parameters) for x in torch.tensor(inputs)]
    rows = torch.stack([torch.cat([part.ravel() for part in gradient]) for gradient in made])
    np.testing.assert_allclose(K, (rows @ rows.T).numpy(), rtol=1e-3)


@needs_weights
@pytest.mark.parametrize("name", ["mnist-vae", "mnist-flow", "mnist-pixelcnn"])
def test_a_likelihood_has_an_embedding(name):
    found = load(name)
    inputs = found.inputs(data.load("mnist", "test").images[:3])
    embedding = nfk.fit(found.model(), inputs, 2)
    assert np.isfinite(embedding.training).all()
    np.testing.assert_allclose(embedding(inputs[:1]), embedding.training[:1], rtol=1e-2, atol=1e-3)


@needs_weights
def test_a_critic_has_moments_over_its_generator_or_over_the_data():
    critic = load("mnist-gan-critic")
    images = critic.sample(0, 4)
    assert images.shape == (4, 1, 28, 28)
    assert abs(images).max() <= 1
    np.testing.assert_array_equal(images, critic.sample(0, 4))
    assert critic.model().expectation == "model"
    assert load("cifar10-dcgan-critic-wide").model().expectation == "data"
    with pytest.raises(ValueError, match="cifar10-dcgan-critic-wide has no generator: pass expectation='data'"):
        load("cifar10-dcgan-critic-wide").sample(0, 1)
    with pytest.raises(ValueError, match="mnist-gan-generator is a generator and has no score of its own"):
        critic.generator.model()


def test_inputs_and_images_are_each_others_inverse():
    images = np.random.default_rng(0).random((2, 32, 32, 3), np.float32)
    pixels = NETWORKS["cifar10-wrn-16-2-a"].pixels
    assert pixels(images).shape == (2, 3, 32, 32)
    np.testing.assert_allclose(pixels.images(pixels(images)), images, atol=1e-6)


def test_every_network_is_built_with_as_many_parameters_as_are_known():
    for name, network in NETWORKS.items():
        assert sum(part.numel() for part in network.build().parameters()) == network.parameters, name
    assert NETWORKS.keys() == files.ORIGINS.keys()
    assert len(NETWORKS) == 22


def test_an_untrained_network_follows_its_seed():
    a, b, c = (untrained("mnist-gan-critic", seed).module.state_dict()["disc.0.weight"] for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of weights and a cache, both empty; every sum in the table is that of what is put there."""
    monkeypatch.setenv("NFK_DATA", str(tmp_path / "given"))
    monkeypatch.setenv("NFK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "given" / "pretrained").mkdir(parents=True)
    return tmp_path / "given" / "pretrained"


def known_sums(monkeypatch, name: str, path) -> None:
    from dataclasses import replace
    from hashlib import sha256

    made = sha256(path.read_bytes()).hexdigest()
    changed = replace(files.ORIGINS[name], sha256=made, safetensors=made)
    monkeypatch.setattr(files, "ORIGINS", {**files.ORIGINS, name: changed})


NAME = "mnist-lenet5"


def test_missing_weights_are_named_with_where_they_can_be_had(own):
    with pytest.raises(
        FileNotFoundError, match=rf"the weights {NAME} were not found: NFK_DATA=.* lacks pretrained/"
    ) as e:
        load(NAME)
    assert "pass download=True to fetch https://raw.githubusercontent.com/csinva/" in str(e.value)
    assert "lenet_epoch%3D12_test_acc%3D0.991.pth" in str(e.value)


def test_damaged_weights_are_named(own):
    path = own / f"{NAME}.safetensors"
    save_file(untrained(NAME).module.state_dict(), path)
    with pytest.raises(
        WeightsError, match=r"lenet5.safetensors is damaged: it has sha256 .*, expected .*: *delete it|;"
    ):
        load(NAME)
    path.write_bytes(b"nothing")
    with pytest.raises(WeightsError, match=r"is damaged: it has sha256 .* delete it and load again with download=True"):
        load(NAME)


def test_a_file_that_is_whole_and_no_safetensors_file_is_damaged_too(own, monkeypatch):
    path = own / f"{NAME}.safetensors"
    path.write_bytes(b"nothing")
    known_sums(monkeypatch, NAME, path)
    with pytest.raises(WeightsError, match=r"lenet5.safetensors is damaged: it cannot be read: "):
        load(NAME)


def test_an_experiment_without_its_weights_or_with_damaged_ones_ends_with_a_sentence(own, monkeypatch, capsys):
    monkeypatch.chdir(own)
    assert entry.main(("pretrained",), preset="smoke") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"the weights {NAME} were not found: NFK_DATA=")
    (own / f"{NAME}.safetensors").write_bytes(b"nothing")
    assert entry.main(("pretrained",), preset="smoke") == 2
    assert "lenet5.safetensors is damaged: it has sha256" in capsys.readouterr().err


def test_damaged_weights_of_a_network_trained_here_are_named(tmp_path):
    (tmp_path / "cifar10-vae.safetensors").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match=r"cifar10-vae.safetensors is damaged \(.*train it again with `python -m"):
        load_own("cifar10-vae", tmp_path)
    with pytest.raises(FileNotFoundError, match="there are no weights .*svhn-dcgan-critic.safetensors: train them"):
        load_own("svhn-dcgan-critic", tmp_path)


@pytest.mark.parametrize("other", ["mnist-vae", "mnist-gan-critic"])
def test_weights_of_another_architecture_are_refused_by_name_and_shape(own, monkeypatch, other):
    path = own / f"{NAME}.safetensors"
    save_file(untrained(other).module.state_dict(), path)
    known_sums(monkeypatch, NAME, path)
    with pytest.raises(
        WeightsError, match=r"another architecture than LeNet5: 'convnet.c1.bias' is missing in the file"
    ):
        load(NAME)


def test_a_tensor_of_another_shape_is_refused(own, monkeypatch):
    path = own / f"{NAME}.safetensors"
    save_file({**untrained(NAME).module.state_dict(), "fc.f7.bias": torch.zeros(5)}, path)
    known_sums(monkeypatch, NAME, path)
    with pytest.raises(
        WeightsError, match=r"'fc.f7.bias' has shape \(5,\) in the file and has shape \(10,\) in the network"
    ):
        load(NAME)


@pytest.mark.parametrize("wrapped", [lambda state: state, lambda state: {"epoch": 3, "state_dict": state}])
def test_an_original_is_read_as_tensors_and_nothing_is_executed(own, monkeypatch, tmp_path, wrapped):
    source = untrained(NAME, seed=3).module.state_dict()
    path = tmp_path / "cache" / "pretrained" / f"{NAME}.pth"
    path.parent.mkdir(parents=True)
    torch.save(wrapped({f"module.{key}": value for key, value in source.items()}), path)
    known_sums(monkeypatch, NAME, path)
    assert all(torch.equal(value, source[key]) for key, value in load(NAME).module.state_dict().items())
    torch.save({"state_dict": print}, path)
    known_sums(monkeypatch, NAME, path)
    with pytest.raises(WeightsError, match=r"is damaged: it cannot be read: .*[Ww]eights"):
        load(NAME)


def test_an_unknown_network_is_named_and_the_known_ones_with_it():
    with pytest.raises(
        WeightsError, match=r"'mnist-lenet6' is no network that others trained: choose from cifar10-wrn-16-2-a"
    ):
        load("mnist-lenet6")


def test_the_command_says_what_is_where_and_names_what_is_not_known(own, monkeypatch, capsys):
    from reproduction.pretrained.__main__ import main

    monkeypatch.setenv("COLUMNS", "200")
    path = own / f"{NAME}.safetensors"
    save_file(untrained(NAME).module.state_dict(), path)
    known_sums(monkeypatch, NAME, path)
    assert main((NAME, "mnist-vae")) == 0
    said = capsys.readouterr().out
    assert str(own)[-20:] in said.replace("\n", "")
    assert "not here: --download" in said
    assert main(("mnist-lenet6",)) == 2
    assert "'mnist-lenet6' is no network" in capsys.readouterr().err
