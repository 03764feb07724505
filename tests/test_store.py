"""What is saved: whole or not at all, whoever else writes, whatever kills the writer, whichever bit flips."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from registry import CASES, mlp, mlp_params, vectors
from safetensors.numpy import save as safetensors_bytes

import nfk
from nfk import identity, store
from nfk.atomic import write_atomically
from nfk.stream import Examples


@pytest.fixture
def umask():
    """A umask that is not the common one, so that a mode that comes from it can be told from a fixed one."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path):
    return oct(path.stat().st_mode & 0o777)


def test_a_file_is_replaced_whole(tmp_path, umask):
    path = tmp_path / "report.txt"
    path.write_text("old")

    def write(partial):
        assert partial.parent == tmp_path
        assert partial.name.startswith(".")
        assert partial.suffix == ".txt"
        partial.write_text("ne")
        assert path.read_text() == "old"
        partial.unlink()  # as writers do that rename a file of their own
        partial.touch(0o600)
        partial.write_text("new")

    write_atomically(path, write)
    assert path.read_text() == "new"
    assert mode(path) == "0o640"
    assert os.listdir(tmp_path) == ["report.txt"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "report.txt"
    path.write_text("old")

    def write(partial):
        partial.write_text("ne")
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.txt"]


def test_two_calls_use_two_partial_files(tmp_path):
    path = tmp_path / "report.txt"

    def outer(partial):
        write_atomically(path, lambda inner: inner.write_text("inner") and None)
        assert partial.read_text() == ""
        partial.write_text("outer")

    write_atomically(path, outer)
    assert path.read_text() == "outer"


TENSORS = {
    "right": np.arange(12, dtype=np.float32).reshape(4, 3), "turned": np.arange(6.0).reshape(2, 3).T,
    "count": np.asarray(7), "empty": np.zeros((0, 3), np.float32),
}  # fmt: skip
FACTS = {"trace": 0.1 + 0.2, "engine": "gradients", "nothing": None, "path": "größe", "model": {"paths": ["a", "b"]}}


@pytest.fixture
def saved(tmp_path):
    return store.write(tmp_path / "run", TENSORS, FACTS)


def write_format_1(folder, facts=FACTS):
    """A folder as version 0.3 left it."""
    folder.mkdir(exist_ok=True)
    content = safetensors_bytes({name: np.ascontiguousarray(array) for name, array in TENSORS.items()})
    digest = hashlib.sha256(content).hexdigest()
    name = f"embedding-{digest[:16]}.safetensors"
    (folder / name).write_bytes(content)
    head = {"format": 1, "tensors": name, "sha256": digest}
    (folder / "embedding.json").write_text(json.dumps({**head, **facts}, indent=1))
    return folder


def same(found, expected):
    tensors, facts = found
    assert facts == expected[1]
    assert tensors.keys() == expected[0].keys()
    for name, array in expected[0].items():
        np.testing.assert_array_equal(tensors[name], array)
        assert tensors[name].dtype == np.asarray(array).dtype


def visible(folder):
    """The names of what is in the folder, but the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != store.LOCK)


def one_embedding(folder):
    names = visible(folder)
    return len(names) == 2 and names[1] == "embedding.json" and names[0].endswith(".safetensors")


def child(script, *arguments):
    """Another process with `store`, `np` and `folder` (its first argument) at hand."""
    begin = "import sys, pathlib, numpy as np\nfrom nfk import store\nfolder = pathlib.Path(sys.argv[1])\n"
    command = [sys.executable, "-c", begin + textwrap.dedent(script), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(condition, what):
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, f"waited a minute for {what}"
        time.sleep(0.001)


# What was written is what is read


def test_what_was_written_is_read(saved):
    found = store.read(saved)
    same(found, (TENSORS, FACTS))
    assert found[0]["count"].shape == ()
    assert one_embedding(saved)


def test_a_second_save_replaces_the_first_alone(saved):
    others = {"embedding-mine.safetensors": "a", "notes.txt": "b", ".hidden": "c", ".embedding-partial-notes": "d"}
    for name, text in others.items():
        (saved / name).write_text(text)
    (saved / "embedding-0123456789abcdef.safetensors.bak").write_text("e")
    store.write(saved, {"right": np.ones(3)}, {"trace": 2.0})
    same(store.read(saved), ({"right": np.ones(3)}, {"trace": 2.0}))
    assert {name: (saved / name).read_text() for name in others} == others
    assert (saved / "embedding-0123456789abcdef.safetensors.bak").read_text() == "e"
    assert len(visible(saved)) == 2 + 5


def test_the_same_embedding_saved_twice(saved):
    store.write(saved, TENSORS, FACTS)
    same(store.read(saved), (TENSORS, FACTS))


def test_a_folder_of_version_0_3(tmp_path):
    folder = write_format_1(tmp_path / "run")
    tensors, facts = store.read(folder, required=FACTS)
    assert facts == FACTS
    np.testing.assert_array_equal(tensors["right"], TENSORS["right"])
    store.write(folder, {"right": np.ones(3)}, {"trace": 2.0})
    same(store.read(folder), ({"right": np.ones(3)}, {"trace": 2.0}))
    assert one_embedding(folder)


def test_modes_are_those_of_the_umask(tmp_path, umask):
    folder = store.write(tmp_path / "run", TENSORS, FACTS)
    assert {mode(folder / name) for name in visible(folder)} == {"0o640"}


def test_facts_that_json_cannot_hold_change_nothing(saved):
    with pytest.raises(TypeError):
        store.write(saved, TENSORS, {"trace": object()})
    same(store.read(saved), (TENSORS, FACTS))
    assert one_embedding(saved)


# Failure to write


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("nfk.tensors.write", OSError("No space left on device")),
        ("os.fsync", OSError("No space left on device")),
        ("os.replace", OSError("No space left on device")),
        ("nfk.store._write_text", OSError("No space left on device")),
    ],
)
def test_a_failed_save_is_an_os_error_and_keeps_the_old_one(saved, monkeypatch, place, error):
    def fail(*arguments, **options):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(place, fail)
        with pytest.raises(OSError, match=r"saving the embedding in .*run failed: .*No space left.*; make room"):
            store.write(saved, {"right": np.ones(3)}, {"trace": 2.0})
    same(store.read(saved), (TENSORS, FACTS))
    assert one_embedding(saved)


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_failure_between_any_two_moves_keeps_the_old_one(saved, monkeypatch, call):
    """Two files are put in place in the hidden folder, then moved out of it: fail at each in turn."""
    replace, calls = os.replace, []

    def fail_at_one(*paths):
        calls.append(paths)
        if len(calls) == call:
            raise OSError("No space left on device")
        replace(*paths)

    monkeypatch.setattr(os, "replace", fail_at_one)
    with pytest.raises(OSError, match="No space left"):
        store.write(saved, {"right": np.ones(3)}, {"trace": 2.0})
    same(store.read(saved), (TENSORS, FACTS))
    store.write(saved, {"right": np.ones(4)}, {"trace": 2.0})
    assert one_embedding(saved)


@pytest.mark.parametrize("damage", [lambda text: text[1:], lambda text: text.replace("embedding-", "embedding=")])
def test_a_failed_save_over_a_damaged_json_keeps_its_tensors(saved, monkeypatch, damage):
    """The tensors that a damaged JSON should name stay until another embedding is whole."""
    text = (saved / "embedding.json").read_text()
    (saved / "embedding.json").write_text(damage(text))
    monkeypatch.setattr(store.tensors, "write", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        store.write(saved, {"right": np.ones(3)}, {"trace": 2.0})
    (saved / "embedding.json").write_text(text)
    same(store.read(saved), (TENSORS, FACTS))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    if shutil.which("mount") is None:
        pytest.skip("a full disk is not tried: there is no mount command")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a full disk is not tried: mounting a small one is not allowed here ({mounted.stderr.strip()})")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    ("tensors", "facts"),
    [({"right": np.ones(2**18)}, {}), ({"right": np.ones(3)}, {"text": "x" * 2**21})],
    ids=["tensors", "facts"],
)
def test_a_full_disk(small_disk, tensors, facts):
    folder = store.write(small_disk / "run", TENSORS, FACTS)
    with pytest.raises(OSError, match=r"saving the embedding in .*run failed: .*No space left"):
        store.write(folder, tensors, facts)
    same(store.read(folder), (TENSORS, FACTS))
    assert one_embedding(folder)


def test_an_interrupted_save_leaves_the_old_one(saved, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store.tensors, "write", lambda *a: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            store.write(saved, {"right": np.ones(3)}, {})
    same(store.read(saved), (TENSORS, FACTS))
    assert one_embedding(saved)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"save='.*run' cannot be written: Not a directory; choose another folder"):
        store.check_writable(tmp_path / "file" / "run")


# Several writers


@pytest.mark.around
def test_writers_and_readers_at_once(tmp_path):
    """Three processes save in one folder while two load from it: no load fails, and one embedding is left."""
    folder = store.write(tmp_path / "run", {"right": np.zeros(2000)}, {"number": 0})
    writer = """
    for number in range(25):
        store.write(folder, {"right": np.full(2000, number % 3 + 10.0 * int(sys.argv[2]))}, {"number": number % 3})
    print("done")
    """
    reader = """
    import itertools
    for count in itertools.count():
        tensors, facts = store.read(folder)
        assert (tensors["right"] % 10 == facts["number"]).all()
        if (folder.parent / "stop").exists() and count > 30:
            break
    print("done")
    """
    writers = [child(writer, folder, number) for number in range(3)]
    readers = [child(reader, folder) for _ in range(2)]
    answers = [process.communicate(timeout=120)[0] for process in writers]
    (tmp_path / "stop").touch()
    answers += [process.communicate(timeout=120)[0] for process in readers]
    assert answers == ["done\n"] * 5
    assert one_embedding(folder)
    store.read(folder)


def test_a_reader_that_a_writer_overtakes(saved, monkeypatch):
    """The embedding is replaced after its JSON has been read, and again after its tensors have been hashed."""
    steps = iter([1.0, 2.0])
    for name in ("_read_facts", "_hash_file"):
        original = getattr(store, name)

        def overtaken(*arguments, original=original):
            result = original(*arguments)
            monkeypatch.undo()  # within the writer, and for the rest of this reader
            store.write(saved, {"right": np.full(3, next(steps))}, {"trace": 2.0})
            return result

        monkeypatch.setattr(store, name, overtaken)
        tensors, facts = store.read(saved)
        assert facts == {"trace": 2.0}
    np.testing.assert_array_equal(tensors["right"], np.full(3, 2.0))


def unfinished(folder):
    """The partial files of writers, dead or alive, that hold something."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.name.startswith(".") and path.name != store.LOCK and path.stat().st_size:
                found.append(path)
    return found


LARGE = 'store.write(folder, {"right": np.ones(2**25, np.float32)}, {"trace": 3.0})\nprint("done")'


@pytest.mark.around
def test_a_killed_writer_leaves_nothing_for_long(saved):
    """Killed in the middle of 128 MB: the old embedding still loads, and the next save removes what was left."""
    process = child(LARGE, saved)
    wait_for(lambda: unfinished(saved), "the child to begin its file")
    process.kill()
    assert process.communicate()[0] == ""
    assert unfinished(saved)
    same(store.read(saved), (TENSORS, FACTS))
    store.write(saved, {"right": np.ones(3)}, {"trace": 2.0})
    assert one_embedding(saved)


def test_the_tensors_of_a_writer_killed_before_its_json(saved):
    orphan = saved / "embedding-0123456789abcdef.safetensors"
    orphan.write_text("never named")
    store.write(saved, {"right": np.ones(3)}, {"trace": 2.0})
    assert not orphan.exists()


@pytest.mark.around
def test_the_partial_files_of_a_live_writer_stay(saved):
    """A writer that has stopped half way is not dead: another waits for it and removes nothing of its work."""
    process = child(LARGE, saved)
    wait_for(lambda: unfinished(saved), "the child to begin its file")
    os.kill(process.pid, signal.SIGSTOP)
    other = threading.Thread(target=store.write, args=(saved, {"right": np.ones(3)}, {"trace": 2.0}))
    other.start()
    other.join(0.5)
    waited, kept = other.is_alive(), unfinished(saved)
    os.kill(process.pid, signal.SIGCONT)
    assert process.communicate(timeout=60)[0] == "done\n"
    other.join(60)
    assert waited
    assert kept
    same(store.read(saved), ({"right": np.ones(3)}, {"trace": 2.0}))
    assert one_embedding(saved)


def test_without_locks_nothing_is_removed(saved, monkeypatch):
    """On a file system that has no locks a save works, and leaves the old tensors where they are."""

    def refuse(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    store.write(saved, {"right": np.ones(3)}, {"trace": 2.0})
    same(store.read(saved), ({"right": np.ones(3)}, {"trace": 2.0}))
    assert len(visible(saved)) == 3


# Damage and malice


def altered(folder, **changes):
    path = folder / "embedding.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", ["victim.txt", "../victim.txt", "embedding-mine.safetensors"])
def test_a_json_cannot_make_a_save_remove_a_file(saved, name):
    victim = saved / name
    victim.write_text("mine")
    altered(saved, tensors=name)
    store.write(saved, {"right": np.ones(3)}, {"trace": 2.0})
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["../../elsewhere.safetensors", "..", "", "a\0b"])
def test_a_json_cannot_point_out_of_the_folder(saved, name):
    altered(saved, tensors=name)
    with pytest.raises(
        FileNotFoundError, match=r"run.* is missing, though embedding.json names it: save the embedding"
    ):
        store.read(saved)


def reads_with_one_bit_flipped(folder, monkeypatch, required):
    """For every bit of the JSON, the facts that are read, or the error."""
    monkeypatch.setattr(store, "TRIES", 1)
    monkeypatch.setattr(store, "PAUSE", 0)
    path = folder / "embedding.json"
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            yield store.read(folder, required)[1]
        except (ValueError, FileNotFoundError) as error:
            yield error


def is_told(error):
    return re.search("damaged|is missing, though embedding.json names it", str(error))


def test_every_flipped_bit_is_told(saved, monkeypatch):
    outcomes = list(reads_with_one_bit_flipped(saved, monkeypatch, ()))
    errors = [found for found in outcomes if isinstance(found, Exception)]
    assert [found for found in outcomes if found not in errors and found != FACTS] == []
    assert [error for error in errors if not is_told(error)] == []
    assert len(errors) > 0.99 * len(outcomes)


def test_a_flipped_bit_of_version_0_3_gives_no_raw_error(tmp_path, monkeypatch):
    """Without a checksum a flip in a number is not seen, but a name that is lost is told."""
    folder = write_format_1(tmp_path / "run")
    for found in reads_with_one_bit_flipped(folder, monkeypatch, FACTS):
        assert is_told(found) if isinstance(found, Exception) else found.keys() >= FACTS.keys()


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"format": 1}', '{"format": 2, "tensors": 3, "sha256": 4}'])
def test_another_json(saved, text):
    (saved / "embedding.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"embedding.json is damaged \(truncated or altered\): save the embedding again"
    ):
        store.read(saved)
    store.write(saved, TENSORS, FACTS)
    same(store.read(saved), (TENSORS, FACTS))


def test_a_missing_fact(saved):
    with pytest.raises(ValueError, match=r"embedding.json is damaged .*: it lacks passes; save the embedding again"):
        store.read(saved, required={"trace", "passes"})


def test_a_format_to_come(saved):
    altered(saved, format=3)
    with pytest.raises(ValueError, match="has format 3, but this version reads format 1 and 2: install a newer nfk"):
        store.read(saved)


def test_damaged_tensors(saved):
    file = next(saved.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged .*its hash is not the one saved in embedding.json"):
        store.read(saved)
    file.write_bytes(b"something else")
    altered(saved, sha256=hashlib.sha256(b"something else").hexdigest())
    with pytest.raises(ValueError, match="is not a safetensors file"):
        store.read(saved)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="is missing, though embedding.json names it"):
        store.read(saved)


def test_nothing_saved(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no saved embedding: there is no embedding.json in it"):
        store.read(tmp_path)


def test_loading_writes_nothing_and_runs_nothing(saved):
    """A folder that may only be read loads, and what is in it is data."""
    before = {path: path.stat().st_mtime_ns for path in [saved, *saved.iterdir()]}
    store.read(saved)
    assert {path: path.stat().st_mtime_ns for path in [saved, *saved.iterdir()]} == before
    source = Path(store.__file__).read_text() + Path(identity.__file__).read_text()
    assert not re.search(r"\b(pickle|eval|exec|marshal|shelve|joblib)\b|allow_pickle", source)


# Whose basis it is


@pytest.fixture(scope="module")
def model():
    return nfk.classifier(mlp, mlp_params(np.float32, 6, 8, 4))


def test_a_model_is_described_as_json_can_hold_it(model):
    description = identity.describe(model)
    identity.check(json.loads(json.dumps(description)), model, "run")


def test_a_description_of_another_model(model):
    description = identity.describe(model)
    with pytest.raises(ValueError, match="run was fitted with another model: its family is 'vae', this one's is 'clas"):
        identity.check({**description, "family": "vae"}, model, "run")
    other = {**description, "params": {**description["params"], "first/bias": "0"}}
    with pytest.raises(ValueError, match=r"run was fitted with another network: params\['first/bias'\] has other val"):
        identity.check(other, model, "run")


@pytest.mark.parametrize("lost", ["family", "centred", "fisher", "own_noise", "paths", "chosen", "params"])
def test_half_a_description_is_told(model, lost):
    whole = identity.describe(model)
    half = {name: value for name, value in whole.items() if name != lost}
    for damaged in (half, "text", {**whole, "params": "text"}):
        with pytest.raises(ValueError, match=r"run is damaged \(truncated or altered\).*save the embedding again"):
            identity.check(damaged, model, "run")


def test_the_canary_tells_one_function_from_another(model):
    X = vectors(np.float32, 6)
    other = nfk.classifier(lambda params, x: 2 * mlp(params, x), model.params)
    assert identity.canary(model, X) == identity.canary(model, 3 * X)
    assert identity.canary(model, X) != identity.canary(other, X)


def test_kinds_of_examples_survive_json():
    X = vectors(np.float32, 6)
    for source in (X, {"a": X, "b": X[:, 0]}, (X, X[:, :2])):
        kind = identity.Kind.of(Examples(source))
        assert identity.Kind.from_json(json.loads(json.dumps(kind.to_json())), kind.dtype) == kind
    assert identity.Kind.of(Examples(X)).plain == (6,)
    assert identity.Kind.of(Examples({"a": X, "b": X[:, 0]})).plain == {"['a']": (6,), "['b']": ()}


SAVED = Path(__file__).parent / "saved"


def test_what_version_0_3_saved_is_loaded(tmp_path):
    """Two folders written by that version, with the embedding of five examples; saved again, they are of this one."""
    sequences = CASES["density_sequences"](np.dtype(np.float32))
    X = vectors(np.float32, 6)
    cases = {
        "plain-0.3": (nfk.classifier(mlp, mlp_params(np.float32, 6, 8, 4)), X[:5]),
        "tokens-0.3": (sequences.model, {name: leaf[:5] for name, leaf in sequences.X.items()}),
    }
    for name, (model, examples) in cases.items():
        embedding = nfk.load(SAVED / name, model)
        expected = np.load(SAVED / name / "embedding.npy")
        np.testing.assert_allclose(embedding(examples), expected, atol=1e-4 * np.abs(expected).max())
        again = nfk.load(embedding.save(tmp_path / name), model)
        np.testing.assert_array_equal(again(examples), embedding(examples))
    other = nfk.load(SAVED / "plain-0.3", nfk.classifier(lambda p, x: 2 * mlp(p, x), cases["plain-0.3"][0].params))
    with pytest.raises(ValueError, match="another network: with the same parameters"):
        other(X)
