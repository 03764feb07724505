"""What is saved: whole or not at all, whoever else writes, whatever kills the writer, whichever bit flips."""

from __future__ import annotations

import os

import pytest

from nfk.atomic import write_atomically


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
