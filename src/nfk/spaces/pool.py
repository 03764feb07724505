"""Work shared out over the cores, one level above BLAS, which has one thread for each worker.

Threads of BLAS wait for one another in a spin: with another process on the same cores, a product of small matrices then
takes ten times as long (measured). Workers that take the next piece when they have done one do not wait at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")
Result = TypeVar("Result")

_lock = RLock()
_depth = 0


def workers() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
    """`function` of every task, in the order of the tasks, by as many workers as there are cores."""
    with one_thread_of_blas():
        if len(tasks) <= 1 or workers() == 1:
            return [function(task) for task in tasks]
        return list(_executor(workers(), os.getpid()).map(function, tasks))


@contextmanager
def one_thread_of_blas() -> Iterator[None]:
    """BLAS without threads of its own, in all of this process; as it was when the outermost such block ends."""
    global _depth  # noqa: PLW0603  (the number of threads is a property of the process, too)
    with _lock:
        _depth += 1
        limit = _controller().limit(limits=1, user_api="blas") if _depth == 1 else None
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if limit is not None:
                limit.restore_original_limits()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@cache
def _executor(size: int, process: int) -> ThreadPoolExecutor:
    """Kept for the process that made it: a fork has none of its threads."""
    return ThreadPoolExecutor(size, thread_name_prefix="nfk")
