"""Distillation in PyTorch: losses against their twins, batches, and a training that goes on where it stopped."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from nfk.tasks import distillation_losses as twins

torch = pytest.importorskip("torch")

from reproduction import torch_training
from reproduction.distillation import classroom, losses, methods
from reproduction.distillation.looking import Seen, look, look_at_all
from reproduction.distillation.teaching import Lessons, Recipe
from reproduction.own import load, untrained
from reproduction.pretrained import WeightsError
from reproduction.pretrained.wide_resnets import WideResNet
from reproduction.tasks.ledger import Ledger

pytestmark = pytest.mark.reproduction


def maps(seed: int, channels: int) -> list[np.ndarray]:
    """Two groups' maps, channels last."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((3, side, side, channels)).astype(np.float32) for side in (4, 2)]


def first(arrays: list[np.ndarray]) -> list:
    return [torch.tensor(np.moveaxis(array, -1, 1).copy()) for array in arrays]


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, 5)).astype(np.float32)


@pytest.mark.parametrize("name", ["attention", "selectivity"])
def test_losses_of_maps_are_those_of_the_library(name):
    student, teacher = maps(0, 3), maps(1, 6)
    ours = getattr(losses, name)(first(student), first(teacher))
    twin = getattr(twins, name)([jnp.asarray(one) for one in student], [jnp.asarray(one) for one in teacher])
    np.testing.assert_allclose(ours.item(), twin, rtol=1e-4)


def test_losses_of_numbers_are_those_of_the_library():
    a, b = numbers(0), numbers(1)
    for ours, twin in ((losses.softened, twins.softened), (losses.hint, twins.hint)):
        np.testing.assert_allclose(ours(torch.tensor(a), torch.tensor(b)).item(), twin(a, b), rtol=1e-5)
    for distance in twins.DISTANCES:
        ours = losses.embedding_loss(torch.tensor(a), torch.tensor(b), distance)
        np.testing.assert_allclose(
            ours.item(), twins.embedding_loss(jnp.asarray(a), jnp.asarray(b), distance), rtol=1e-5
        )


def test_the_variational_loss_is_that_of_the_library():
    predicted, teacher, raw = maps(2, 4), maps(3, 4), [np.linspace(-1, 2, 4, dtype=np.float32)] * 2
    ours = losses.variational(first(predicted), first(teacher), [torch.tensor(one) for one in raw])
    np.testing.assert_allclose(ours.item(), twins.variational(predicted, teacher, raw), rtol=1e-5)


def test_a_mirrored_image_comes_with_what_the_teacher_said_of_its_mirror_image():
    images = torch.arange(2 * 3 * 2 * 2.0).reshape(2, 3, 2, 2)
    signals = {"target": torch.stack([torch.tensor([[1.0], [2.0]]), torch.tensor([[-1.0], [-2.0]])])}
    lessons = Lessons(images, torch.tensor([7, 8]), signals)
    got, labels, told = lessons.batch(np.array([1, 0]), np.array([False, True]), ["target"])
    assert labels.tolist() == [8, 7]
    assert told["target"].ravel().tolist() == [2.0, -1.0]
    assert torch.equal(got[0], images[1])
    assert torch.equal(got[1], images[0].flip(2))


def test_maps_that_were_kept_are_those_that_the_teacher_has_of_the_same_views():
    """Kept as float16, channels last, both views; a batch gives them channels first."""
    torch.manual_seed(0)
    teacher, images = WideResNet(10, 1).eval(), torch.randn(3, 3, 32, 32)
    views = [images, images.flip(3)]
    kept = [np.empty((2, 3, 32 >> g, 32 >> g, c), np.float16) for g, c in enumerate(methods.STUDENT)]
    outputs = [look_at_all(teacher, view, 2, [one[v] for one in kept]) for v, view in enumerate(views)]
    signals = dict(zip(methods.GROUPS, map(torch.from_numpy, kept), strict=True))
    rows, mirrored = np.array([2, 0]), np.array([True, False])
    told = Lessons(images, torch.zeros(3), signals).batch(rows, mirrored, methods.GROUPS)
    with torch.no_grad():
        seen = look(teacher, told.images, True)
    for group, maps in zip(methods.GROUPS, seen.groups, strict=True):
        torch.testing.assert_close(told.signals[group], maps, rtol=1e-3, atol=1e-3 * maps.abs().max().item())
    for part, there in enumerate((seen.features, seen.logits)):
        torch.testing.assert_close(torch.stack([outputs[1][part][2], outputs[0][part][0]]), there)


def test_fitnet_compares_the_end_of_the_second_group():
    method = methods.build("FitNet", 5).eval()
    groups = [torch.randn(2, c, s, s) for c, s in zip(methods.STUDENT, (8, 4, 2), strict=True)]
    taught = torch.randn(2, methods.TEACHER[1], 4, 4)
    expected = ((method.head(groups[1]) - taught) ** 2).mean()
    seen = Seen(groups, *[torch.zeros(0)] * 2)
    torch.testing.assert_close(method(seen, {"group 2": taught}), expected)


@pytest.mark.parametrize("name", methods.METHODS)
def test_every_method_has_a_loss_that_reaches_the_student(name):
    method = methods.build(name, 5)
    sides = (8, 4, 2)
    groups = [torch.randn(2, c, s, s, requires_grad=True) for c, s in zip(methods.STUDENT, sides, strict=True)]
    told = zip(methods.GROUPS, methods.TEACHER, sides, strict=True)
    seen = Seen(groups, torch.randn(2, 64, requires_grad=True), torch.randn(2, 10, requires_grad=True))
    signals = {name: torch.randn(2, 5) for name in ("scaled", "whitened", "pca")} | {"logits": torch.randn(2, 10)}
    signals |= {group: torch.randn(2, c, s, s) for group, c, s in told}
    loss = method(seen, {name: signals[name] for name in method.needs})
    if name == "no teacher":
        assert loss.item() == 0
        return
    loss.backward()
    touched = [part for part in (*groups, seen.features, seen.logits) if part.grad is not None and part.grad.any()]
    assert touched


def _training(steps: int, folder, fail_at: int | None = None) -> torch.Tensor:
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, 0.9)

    def step(now: int) -> float:
        if now == fail_at:
            raise KeyboardInterrupt
        optimizer.zero_grad()
        loss = (layer(torch.randn(4, 3)) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    torch_training.train(step, {"layer": layer, "optimizer": optimizer}, steps=steps, seed=3, folder=folder)
    return layer.weight.detach().clone()


def test_a_training_goes_on_where_it_stopped_and_ends_where_it_would_have_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_training, "CHECKPOINT_SECONDS", -1)
    whole = _training(6, None)
    with pytest.raises(KeyboardInterrupt):
        _training(6, tmp_path, fail_at=4)
    assert torch.equal(_training(6, tmp_path), whole)
    assert not torch.equal(_training(5, None), whole)


@pytest.mark.parametrize("fault", [KeyboardInterrupt, FloatingPointError])
def test_a_student_that_is_stopped_keeps_its_checkpoint_and_one_that_diverged_does_not(fault, tmp_path, monkeypatch):
    def stopped(method, weights, lessons, recipe, seed, folder):
        folder.mkdir(parents=True)
        raise fault

    monkeypatch.setattr(classroom, "taught", stopped)
    room = classroom.Classroom(Ledger("distillation", tmp_path, lambda text: None), lambda: None, 5)
    about = ("student, KD", methods.Weights(0.5, 0.5), lambda: None, Recipe(1), 0, 10)
    if fault is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            room.score(*about)
    else:
        assert room.score(*about)["accuracy"] == 0
    kept = list((tmp_path / "distillation" / "checkpoints").iterdir())
    assert len(kept) == (fault is KeyboardInterrupt)


def test_an_epoch_has_every_example_once_and_the_next_another_order():
    batches = [torch_training.rows_of(now, 12, 4, 0) for now in range(6)]
    assert sorted(np.concatenate(batches[:3])) == list(range(12))
    assert list(np.concatenate(batches[:3])) != list(np.concatenate(batches[3:]))


def test_a_loss_that_is_not_finite_stops_the_training():
    with pytest.raises(FloatingPointError, match="the loss of step 0 is nan"):
        torch_training.train(lambda now: float("nan"), {}, steps=1, seed=0)


def test_networks_that_are_not_there_are_named(tmp_path):
    with pytest.raises(WeightsError, match="'vae' is no network trained here: choose from cifar10-vae, "):
        untrained("vae")
    with pytest.raises(FileNotFoundError, match=r"train them with `python -m reproduction.own cifar10-vae`"):
        load("cifar10-vae", tmp_path)


def test_the_colour_vae_comes_with_its_weights_and_has_a_kernel():
    import nfk

    found = load("cifar10-vae")
    assert sum(part.numel() for part in found.module.parameters()) == found.network.parameters
    X = found.inputs(np.random.default_rng(0).random((4, 32, 32, 3)))
    embedding = nfk.fit(found.model(parameters="decoder/*"), X, rank=2)
    assert embedding(X).shape == (4, 2)
    noise = np.zeros((4, 64), np.float32)
    flat = found.inputs(np.full((4, 32, 32, 3), 0.5))
    assert (found.outputs(flat, noise) > found.outputs(X, noise) + 1000).all()  # grey is likelier than noise
