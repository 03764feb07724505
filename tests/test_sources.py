"""Data larger than memory: every source gives the rows that were put in it, in order, and whoever changes is found."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nfk
from nfk.stream import Examples, fingerprints

RNG = np.random.default_rng(0)
X = RNG.standard_normal((57, 4)).astype(np.float32)
W = RNG.standard_normal((4, 5)).astype(np.float32)
MODEL = nfk.energy(lambda w, x: jnp.sum(jnp.tanh(x @ w)), W)
SLICES = [(0, 57), (0, 1), (0, 10), (10, 20), (20, 21), (3, 40), (56, 57), (19, 38), (0, 0), (57, 57), (5, 5), (30, 99)]


def npy(folder):
    for number, part in enumerate(np.split(X, [7, 20, 20])):
        np.save(folder / f"shard-{number}.npy", part)
    return nfk.from_npy_shards(folder / "shard-*.npy")


def parquet(folder):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    for number, part in enumerate((X[:30], X[30:])):
        table = pa.table({"x": list(part), "label": np.arange(len(part))})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=11)
    return nfk.from_parquet(folder, "x")


def torch_dataset(folder):
    torch = pytest.importorskip("torch")
    return nfk.from_dataset(torch.utils.data.TensorDataset(torch.tensor(X), torch.arange(57)), lambda item: item[0])


def torch_loader(folder):
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(torch.tensor(X), torch.arange(57))
    return nfk.from_loader(torch.utils.data.DataLoader(pairs, batch_size=10), transform=lambda batch: batch[0])


def hugging_face(folder):
    datasets = pytest.importorskip("datasets")
    return nfk.from_dataset(datasets.Dataset.from_dict({"x": X.tolist()}), lambda item: item["x"].astype(np.float32))


def hugging_face_stream(folder):
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"x": X.tolist()}).to_iterable_dataset().with_format("numpy").batch(9)
    return nfk.from_loader(stream, transform=lambda batch: np.asarray(batch["x"], np.float32))


def grain_dataset(folder):
    grain = pytest.importorskip("grain")
    return nfk.from_dataset(grain.MapDataset.source(X))


def grain_stream(folder):
    grain = pytest.importorskip("grain")
    return nfk.from_loader(grain.MapDataset.source(X).to_iter_dataset().batch(8))


def plain_list(folder):
    return nfk.from_loader([X[:3], X[3:50], X[50:]], length=57)


SOURCES = (
    npy, parquet, torch_dataset, torch_loader, hugging_face, hugging_face_stream, grain_dataset, grain_stream,
    plain_list,
)  # fmt: skip


@pytest.fixture(params=SOURCES, ids=lambda make: make.__name__)
def source(request, tmp_path):
    return request.param(tmp_path)


def test_every_slice_is_that_of_the_array(source):
    assert len(source) == 57
    for start, stop in SLICES:
        np.testing.assert_array_equal(np.asarray(source[start:stop]).reshape(-1, 4), X[start:stop])
        assert source[start:stop].dtype == np.float32
    assert "57 examples" in repr(source)
    with pytest.raises(ValueError, match="step 1, not 2"):
        source[::2]


def test_a_fit_of_a_source_is_that_of_the_array(source):
    options = {"method": "krylov", "keep": False, "side": "parameters"}
    ours, plain = nfk.fit(MODEL, source, 3, **options), nfk.fit(MODEL, X, 3, **options)
    np.testing.assert_array_equal(ours.left, plain.left)
    np.testing.assert_array_equal(ours(source), plain(X))
    assert nfk.doctor(MODEL, source, 3).ok


def test_a_fit_of_a_memory_map_is_that_of_the_array(tmp_path):
    np.save(tmp_path / "all.npy", X)
    mapped = np.load(tmp_path / "all.npy", mmap_mode="r")
    ours, plain = nfk.fit(MODEL, mapped, 3), nfk.fit(MODEL, X, 3)
    np.testing.assert_array_equal(ours.left, plain.left)
    np.testing.assert_array_equal(ours(mapped), plain(X))


def test_several_columns_are_a_dict(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    images = RNG.standard_normal((6, 2, 3))
    pq.write_table(pa.table({"image": images.tolist(), "mask": np.arange(6)}), tmp_path / "a.parquet", row_group_size=4)
    found = nfk.from_parquet(tmp_path / "a.parquet")[1:6]
    assert jax.tree.map(np.shape, found) == {"image": (5, 2, 3), "mask": (5,)}
    np.testing.assert_array_equal(found["image"], images[1:6])


def test_another_order_is_found_in_the_second_pass():
    torch = pytest.importorskip("torch")
    many = torch.utils.data.TensorDataset(torch.tensor(np.concatenate([X, 2 * X, 3 * X])))
    loader = torch.utils.data.DataLoader(many, batch_size=10, shuffle=True)
    source = nfk.from_loader(loader, transform=lambda batch: batch[0])
    with pytest.raises(ValueError, match=r"X\[\d+\] is another example than .*: .* shuffle=False"):
        nfk.fit(MODEL, source, 3, method="krylov", keep=False)


def test_two_examples_that_change_places_are_found():
    examples = Examples(nfk.from_loader([X]))
    examples.recognise(0, X[:20])
    examples.recognise(20, X[20:])
    examples.recognise(5, X[5:30])  # other batches of the same
    swapped = X.copy()
    swapped[[31, 40]] = X[[40, 31]]
    with pytest.raises(ValueError, match=r"X\[31\] is another example"):
        examples.recognise(30, swapped[30:])


def test_a_fingerprint_sees_every_number_and_its_place():
    one = fingerprints({"a": X, "b": np.arange(57, dtype=np.int8)})
    assert one.shape == (57,)
    assert len(set(one.tolist())) == 57
    moved = X[:, [1, 0, 2, 3]]
    assert not (fingerprints({"a": moved, "b": np.arange(57, dtype=np.int8)}) == one).any()
    for column in range(4):
        changed = X.copy()
        changed[:, column] = np.nextafter(changed[:, column], np.float32(9))
        assert not (fingerprints({"a": changed, "b": np.arange(57, dtype=np.int8)}) == one).any()


def test_data_sets_of_other_libraries_are_to_be_wrapped():
    torch = pytest.importorskip("torch")
    datasets = pytest.importorskip("datasets")
    pairs = torch.utils.data.TensorDataset(torch.tensor(X))
    for given, words in (
        (pairs, r"X is a TensorDataset of torch: wrap it, as in nfk.from_dataset\(X, transform="),
        (torch.utils.data.DataLoader(pairs), "X is a DataLoader of torch: wrap it, as in nfk.from_loader"),
        (datasets.Dataset.from_dict({"x": [1.0]}), "X is a Dataset of datasets: wrap it, as in nfk.from_dataset"),
    ):
        with pytest.raises(TypeError, match=words):
            nfk.fit(MODEL, given, 3)


def test_bad_sources_say_what_to_do(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    np.save(tmp_path / "a.npy", X)
    np.save(tmp_path / "b.npy", X[:, :2])
    np.save(tmp_path / "c.npy", np.float32(1))
    (tmp_path / "d.npy").write_text("no array")
    names = {"text": ["a", "b"], "ragged": [[1.0], [1.0, 2.0]], "holes": [1.0, None]}
    pq.write_table(pa.table(names), tmp_path / "t.parquet")
    cases = [
        (FileNotFoundError, "names no file: pass a list", lambda: nfk.from_npy_shards(tmp_path / "*.txt")),
        (FileNotFoundError, "1 of 2 paths name no file", lambda: nfk.from_npy_shards([tmp_path / "a.npy", "b.npy"])),
        (ValueError, r"b.npy has rows of shape \(2,\)", lambda: nfk.from_npy_shards(tmp_path / "[ab].npy")),
        (ValueError, "holds a scalar", lambda: nfk.from_npy_shards(tmp_path / "c.npy")),
        (ValueError, "d.npy is no array of numbers", lambda: nfk.from_npy_shards(tmp_path / "d.npy")),
        (ValueError, "has no column 'x': it has text, ragged, holes", lambda: nfk.from_parquet(tmp_path, "x")),
        (TypeError, r"'text' holds .* \(such as 'a'\), not numbers", lambda: nfk.from_parquet(tmp_path, "text")[:1]),
        (ValueError, "lists of different lengths", lambda: nfk.from_parquet(tmp_path, "ragged")[:1]),
        (ValueError, "has empty cells", lambda: nfk.from_parquet(tmp_path, "holes")[:1]),
        (TypeError, "has no length and items: use nfk.from_loader", lambda: nfk.from_dataset(iter(X))),
        (TypeError, "can be read only once: pass what it was made of", lambda: nfk.from_loader(iter([X]))),
        (ValueError, "ended after 57 of 60 examples: pass length=57", lambda: nfk.from_loader([X], 60)[50:60]),
        (ValueError, "differ in shape or structure: give transform=", lambda: nfk.from_dataset([X[0], X[0, :2]])[:2]),
    ]
    for kind, words, call in cases:
        with pytest.raises(kind, match=words):
            call()


MEMORY = """
import sys, numpy as np, jax.numpy as jnp, nfk, resource
from pathlib import Path
folder, shards, width = Path(sys.argv[1]), 10, 16384
rng = np.random.default_rng(0)
for shard in range(shards):  # 10 x 21 MB
    np.save(folder / f"{shard:02}.npy", rng.standard_normal((320, width), dtype=np.float32))
w = rng.standard_normal(64, dtype=np.float32) / 8
model = nfk.energy(lambda w, x: jnp.sum(jnp.tanh(x.reshape(-1, 64) @ w)), w)
warm = nfk.fit(model, rng.standard_normal((64, width), dtype=np.float32), 2, keep=False, method="krylov")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
nfk.fit(model, nfk.from_npy_shards(folder), 2, memory="20MB", max_steps=1, method="krylov")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)
"""


@pytest.mark.around
def test_memory_does_not_grow_with_the_data(tmp_path):
    """A set ten times the budget."""
    run = [sys.executable, "-W", "ignore", "-c", MEMORY, str(tmp_path)]
    optimised = os.environ | {"XLA_FLAGS": ""}
    result = subprocess.run(run, capture_output=True, text=True, check=False, timeout=200, env=optimised)
    assert result.returncode == 0, result.stderr
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 200e6
    assert int(result.stdout) < 40e6
