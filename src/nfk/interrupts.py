"""Ctrl-C as a flag that is looked at in safe places, so that it breaks no work in flight and none swallows it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_pressed = threading.Event()


@contextmanager
def deferred() -> Iterator[None]:
    """Inside, Ctrl-C raises at the next `check`, or at the end; pressed a second time, at once.

    A callback (of torch, of XLA) that catches every exception can then not swallow it. Signals that are ignored, or
    handled by the caller's own handler, are left as they are, and so are threads other than the main one.
    """
    if threading.current_thread() is not threading.main_thread() or not _is_default():
        yield
        return
    _pressed.clear()
    previous = signal.signal(signal.SIGINT, _press)
    try:
        yield
        check()
    finally:
        signal.signal(signal.SIGINT, previous)
        _pressed.clear()


def check() -> None:
    """Raise `KeyboardInterrupt` if Ctrl-C was pressed."""
    if _pressed.is_set():
        _pressed.clear()
        raise KeyboardInterrupt


def _press(signum: int, frame: FrameType | None) -> None:
    if _pressed.is_set():
        raise KeyboardInterrupt
    _pressed.set()


def _is_default() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler
