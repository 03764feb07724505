"""Fits that are killed: at any moment, by any means, the same call goes on and gives the same embedding."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import nfk
from nfk import fitting, journal
from nfk.checkpoint import decided
from nfk.journal import Journal

RNG = np.random.default_rng(0)
X = RNG.standard_normal((90, 6)).astype(np.float32)
PARAMS = {"w": RNG.standard_normal((6, 9)).astype(np.float32), "v": RNG.standard_normal((9, 3)).astype(np.float32)}
SOURCE = Path(nfk.__file__).parents[1]
QUICK = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}


def network(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


MODEL = nfk.classifier(network, PARAMS)
WAYS = {
    "kept": {"method": "krylov", "keep": True},
    "recomputed": {"method": "krylov", "keep": False, "side": "parameters"},
    "examples": {"method": "krylov", "side": "examples"},
    "coarse": {"search": "bfloat16", "tol": 1e-2},
    "coarse, then exact": {"search": "bfloat16"},
    "products": {"method": "krylov", "engine": "products"},
    "gram": {"method": "gram"},
    "tiles": {"method": "gram", "keep": False},
    "power": {"method": "power"},
    "exact": {"method": "exact"},
}


class Killed(BaseException):
    """Nothing of the package catches it."""


def killed_before(entry: int, monkeypatch) -> None:
    """From now on a fit dies when it is about to write this entry of the journal."""
    append = Journal.append

    def dying(self, *arguments):
        if self.count == entry:
            raise Killed
        append(self, *arguments)

    monkeypatch.setattr(Journal, "append", dying)


def fit(folder=None, **options) -> nfk.Embedding:
    return nfk.fit(MODEL, X, 5, checkpoint=folder, **{"tol": 1e-5, **options})


def same(one: nfk.Embedding, other: nfk.Embedding) -> bool:
    """To the last bit, and with as many passes."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("right", "left", "singular_values", "residuals")]
    return all(np.array_equal(*pair) for pair in pairs) and (one.trace, one.passes) == (other.trace, other.passes)


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("entry-*.json"))


@pytest.mark.parametrize("way", WAYS)
def test_killed_after_every_pass_it_goes_on_to_the_same_bits(way, tmp_path, monkeypatch):
    whole, folder = fit(**WAYS[way]), tmp_path / "run"
    for entry in range(1, 60):
        with monkeypatch.context() as patch:
            killed_before(entry, patch)
            try:
                found = fit(folder, **WAYS[way])
            except Killed:
                assert len(entries(folder)) == entry  # each life adds one pass
                continue
        break
    assert entry >= 3
    assert same(found, whole)


def test_a_model_with_samples_and_a_share_of_variance(tmp_path, monkeypatch):
    model = nfk.vae(lambda p, x, key: jnp.sum(network(p, x)), PARAMS, sample=lambda key, n: X[:1] + np.ones((n, 1)))
    with monkeypatch.context() as patch:
        killed_before(2, patch)
        with pytest.raises(Killed):
            nfk.fit(model, X, 0.9, key=3, checkpoint=tmp_path)
    assert same(nfk.fit(model, X, 0.9, key=3, checkpoint=tmp_path), nfk.fit(model, X, 0.9, key=3))


def test_a_finished_fit_is_returned_without_work(tmp_path, monkeypatch):
    first = fit(tmp_path)
    assert entries(tmp_path) == []
    monkeypatch.setattr(fitting, "loop", None)
    again = fit(tmp_path)
    assert same(first, again)
    assert again.plan.way.method == first.plan.way.method
    np.testing.assert_array_equal(again(X[:3]), first(X[:3]))


def test_a_finished_fit_whose_files_are_damaged_is_done_again(tmp_path):
    first = fit(tmp_path)
    next((tmp_path / "finished").glob("*.safetensors")).write_bytes(b"torn")
    assert same(fit(tmp_path), first)


def half_done(folder: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        killed_before(3, patch)
        with pytest.raises(Killed):
            fit(folder)


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [torn, flipped, Path.unlink])
@pytest.mark.parametrize("name", ["entry-0002.json", "entry-0002-0.npy", "entry-0001-0.npy"])
def test_of_a_torn_checkpoint_the_one_before_is_used(damage, name, tmp_path, monkeypatch):
    half_done(tmp_path, monkeypatch)
    damage(tmp_path / name)
    kept = []
    append = Journal.append
    monkeypatch.setattr(Journal, "append", lambda self, *a: kept.append(self.count) or append(self, *a))
    assert same(fit(tmp_path), fit())
    assert kept[0] == int(name[6:10])


def test_a_journal_that_is_damaged_is_refused(tmp_path, monkeypatch):
    half_done(tmp_path, monkeypatch)
    torn(tmp_path / journal.ABOUT)
    with pytest.raises(ValueError, match="journal.json is damaged, .*: delete .* to begin anew"):
        fit(tmp_path)
    assert len(entries(tmp_path)) == 3


def test_where_rounding_differs_passes_are_computed_again(tmp_path, monkeypatch):
    """On another machine the solver may ask for another product than it did: what was kept is not given for it."""
    half_done(tmp_path, monkeypatch)
    with closing(Journal(tmp_path)) as opened:
        entry = opened.read(2)
        opened.forget(2)
        other = {**entry.facts, "block": [1 + x for x in entry.facts["block"]]}
        opened.append(entry.name, other, [5 + array for array in entry.arrays])
    assert same(fit(tmp_path), fit())


def test_a_full_disk_stops_the_fit_and_leaves_what_was_good(tmp_path, monkeypatch):
    save = np.save

    def full(path, array, **options):
        if "entry-0003" in str(path):
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, array, **options)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(OSError, match="No space left on device; 3 finished passes are safe there. Make room"):
            fit(tmp_path)
    assert not list(tmp_path.glob(".partial*"))
    assert same(fit(tmp_path), fit())


def test_a_limit_of_the_system_is_a_full_disk_too(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(Journal(tmp_path)) as opened:
        opened.append("small", {}, [np.arange(10)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(OSError):  # noqa: PT011  (the words are numpy's)
                opened.append("large", {}, [np.arange(100_000)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert opened.count == 1
        assert opened.read(1) is None
        np.testing.assert_array_equal(opened.read(0).arrays[0], np.arange(10))


@pytest.mark.parametrize("folder", ["", 3, True])
def test_what_is_no_folder_is_refused(folder):
    """Nothing is written to the folder that happens to be the current one."""
    with pytest.raises(ValueError, match=f"checkpoint={folder!r} must be the name of a folder, or None"):
        nfk.fit(MODEL, X, 5, checkpoint=folder)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="checkpoint='.*file' cannot be written: File exists; nothing was finished yet"):
        fit(tmp_path / "file")


def test_two_fits_in_one_folder_are_refused(tmp_path):
    refused = pytest.raises(
        BlockingIOError, match=f"^checkpoint=.* in use by process {os.getpid()}, which runs a fit there: wait"
    )
    with closing(Journal(tmp_path)), refused:
        fit(tmp_path)
    assert fit(tmp_path).rank == 5


CHANGED = X.copy()
CHANGED[70, 3] += 1e-3
OTHERS = {
    "data: hash of the numbers": {"X": CHANGED},
    "data: number of examples": {"X": X[:-1]},
    "model: params: w": {"model": nfk.classifier(network, {**PARAMS, "w": 2 * PARAMS["w"]})},
    "model: score of a fixed example": {"model": nfk.classifier(lambda p, x: 2 * network(p, x), PARAMS)},
    "model: damping": {"model": nfk.classifier(network, PARAMS, damping=0.1)},
    "model: centred is True, this one's is False": {"model": nfk.classifier(network, PARAMS, centred=False)},
    "options: rank is 5, this one's is 6": {"rank": 6},
    "options: tol is 1e-05, this one's is 0.01": {"tol": 1e-2},
    "options: method is 'auto', this one's is 'power'": {"method": "power"},
    "key": {"key": 1},
}


@pytest.mark.parametrize("difference", OTHERS)
def test_another_fit_is_refused_by_name_and_nothing_is_lost(difference, tmp_path, monkeypatch):
    half_done(tmp_path, monkeypatch)
    arguments = {"model": MODEL, "X": X, "rank": 5, "tol": 1e-5, **OTHERS[difference]}
    with pytest.raises(ValueError, match=f"holds another fit: its {difference}.*; pass the same arguments to go on"):
        nfk.fit(**arguments, checkpoint=tmp_path)
    assert len(entries(tmp_path)) == 3


def test_a_plan_of_another_version_is_refused(tmp_path, monkeypatch):
    half_done(tmp_path, monkeypatch)
    with closing(Journal(tmp_path)) as opened:
        about = opened.about
        about["decisions"]["batches"]["forgotten"] = 3
        journal._write(tmp_path / journal.ABOUT, about)
    with pytest.raises(ValueError, match="begun by another version of nfk.*: go on with that version, or begin anew"):
        fit(tmp_path)
    assert len(entries(tmp_path)) == 3


def test_a_plan_of_a_version_that_decided_less_goes_on(tmp_path, monkeypatch):
    """What it did not decide is as it was then, not as this version would have it."""
    half_done(tmp_path, monkeypatch)
    with closing(Journal(tmp_path)) as opened:
        about = opened.about
        del about["decisions"]["batches"]["meeting"]
        journal._write(tmp_path / journal.ABOUT, about)
    plan = nfk.plan(MODEL, X, 5)
    decisions = about["decisions"]
    assert decided(replace(plan, batches=replace(plan.batches, meeting=7)), decisions).batches.meeting == 0
    assert same(fit(tmp_path), fit())


def test_another_budget_is_not_another_fit(tmp_path, monkeypatch):
    """It decides how a fit begins; one that has begun keeps to its plan."""
    half_done(tmp_path, monkeypatch)
    assert same(fit(tmp_path, memory="2GB"), fit())


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch):
    append = Journal.append

    def pressed(self, *arguments):
        append(self, *arguments)
        if self.count == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", pressed)
        with pytest.raises(nfk.Interrupted, match="the same arguments to go on from checkpoint='.*'") as stop:
            fit(tmp_path)
    assert stop.value.result is not None
    assert same(fit(tmp_path), fit())


def test_ctrl_c_while_it_goes_on_loses_nothing(tmp_path, monkeypatch):
    """Saving what there is takes a pass of its own, which is not one of the fit's."""
    options = {"method": "power", "tol": 1}
    with monkeypatch.context() as patch:
        killed_before(5, patch)
        with pytest.raises(Killed):
            fit(tmp_path, **options)
    read = Journal.read

    def pressed(self, index):
        if index == 4:
            raise KeyboardInterrupt
        return read(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "read", pressed)
        with pytest.raises(nfk.Interrupted) as stop:
            fit(tmp_path, **options)
    assert stop.value.result is not None
    assert len(entries(tmp_path)) == 5
    assert same(fit(tmp_path, **options), fit(**options))


def test_numbers_of_numpy_are_numbers(tmp_path):
    options = {"tol": np.float32(1e-3), "oversamples": np.int64(8)}
    assert nfk.fit(MODEL, X, np.int64(5), checkpoint=tmp_path, **options).rank == 5


# --- real processes, really killed

KILLED_WRITING = """
import os, signal, sys, types
package = types.ModuleType("nfk")  # the journal alone: without jax, a process may fork
package.__path__ = [sys.argv[1] + "/nfk"]
sys.modules["nfk"] = package
from pathlib import Path
import numpy as np
from nfk.checkpoint import decided
from nfk.journal import Journal

folder, results = Path(sys.argv[2]), [np.random.default_rng(i).standard_normal((i + 1, 700)) for i in range(3)]
save, left = np.save, [0]

def kill_at(moment):
    def count(event, arguments):
        if event in ("open", "os.rename", "os.remove", "os.chmod", "os.listdir", "os.scandir", "fcntl.flock"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    def half(path, array, **options):
        save(path, array[: len(array) // 2], **options)
        count("open", None)
        save(path, array, **options)
    left[0] = moment
    np.save = half
    sys.addaudithook(count)

def work():
    opened = Journal(folder)
    if opened.about is None:
        opened.begin({"what": 1})
    for place in range(opened.count):
        entry = opened.read(place)
        assert entry.name == str(place) and np.array_equal(entry.arrays[0], results[place]), place
    for place in range(opened.count, 3):
        opened.append(str(place), {}, [results[place]])
    opened.close()
    return opened.count

kills = 0
for moment in range(1, 1000):
    for path in folder.iterdir():
        path.unlink()
    child = os.fork()
    if child == 0:
        kill_at(moment)
        os._exit(0 if work() == 3 else 1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        kills += 1
    assert work() == 3
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".partial")) == []
    if not os.WIFSIGNALED(status):
        assert status == 0
        break
print(kills)
"""


@pytest.mark.around
def test_killed_at_every_call_to_the_file_system_a_journal_is_whole(tmp_path):
    script = [sys.executable, "-c", KILLED_WRITING, str(SOURCE), str(tmp_path)]
    result = subprocess.run(script, capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 40


MANY_LIVES = """
import glob, os, signal, sys, time, numpy as np, jax.numpy as jnp, nfk
root, wanted = sys.argv[1], int(sys.argv[2])
X = np.random.default_rng(0).standard_normal((60, 6)).astype(np.float32)
class Slow:
    def __len__(self):
        return len(X)
    def __getitem__(self, rows):
        time.sleep(0.03)
        return X[rows]
w = np.random.default_rng(1).standard_normal((6, 20)).astype(np.float32)
def fit(checkpoint, result):
    model = nfk.energy(lambda w, x: jnp.sum(jnp.tanh(x @ w)), w)
    found = nfk.fit(model, Slow(), 4, method="power", keep=False, tol=1, checkpoint=checkpoint)
    np.savez(f"{root}/{result}", found.right, found.left, found.singular_values, found.residuals)
def begun(*arguments):
    # A fork before JAX has any thread: a life does not begin with importing everything.
    pid = os.fork()
    if pid == 0:
        try:
            fit(*arguments)
            os._exit(0)
        finally:
            os._exit(1)
    return pid
entries = lambda folder: len(glob.glob(f"{folder}/entry-*.json"))
def lived(folder, pid, anywhere, delay):
    # Its status in the end. It is killed at any moment of its life, or soon after the next pass that it has finished.
    since, before = time.monotonic() if anywhere else None, entries(folder)
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if since is None and entries(folder) > before:
            since = time.monotonic()
        if since is not None and time.monotonic() - since > delay:
            os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
        time.sleep(0.003)
    return ended[1]
assert os.waitpid(begun(None, "whole"), 0)[1] == 0
rng, kills, finished = np.random.default_rng(5), [], 0
while len(kills) < wanted:
    folder, status = f"{root}/run-{finished}", signal.SIGKILL
    while status:
        anywhere = rng.random() < 0.5
        delay = rng.uniform(0, 2 if anywhere else 0.2) if len(kills) < wanted else 1e9
        status = lived(folder, begun(folder, f"found-{finished}"), anywhere, delay)
        assert status in (0, signal.SIGKILL), status
        kills += [entries(folder)] if status else []
    finished += 1
print(finished, *kills)
"""


@pytest.mark.around
def test_a_real_fit_killed_again_and_again(tmp_path):
    """SIGKILL at random moments, at least 20 times: every fit comes to the same end, to the last bit."""
    script = [sys.executable, "-c", MANY_LIVES, str(tmp_path), "20"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=400, env=QUICK)
    assert done.returncode == 0, done.stderr
    finished, *kills = map(int, done.stdout.split())
    assert len(kills) >= 20
    assert len(set(kills)) > 5, "at many places"
    whole = np.load(tmp_path / "whole.npz")
    for number in range(finished):
        found = np.load(tmp_path / f"found-{number}.npz")
        for name in whole:
            np.testing.assert_array_equal(whole[name], found[name])


def test_the_files_of_a_journal_are_plain(tmp_path):
    """JSON and .npy without objects: reading them executes nothing."""
    with closing(Journal(tmp_path)) as opened:
        opened.append("one", {"a": 1.5}, [np.ones(3)])
        assert json.loads((tmp_path / "entry-0000.json").read_text())["content"]["facts"] == {"a": 1.5}
        with pytest.raises(ValueError, match="allow_pickle=False"):
            opened.append("objects", {}, [np.array([object()])])
