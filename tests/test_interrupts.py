"""Ctrl-C, as a terminal sends it: at any moment of a fit, into callbacks, and where a parent ignores it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from nfk import interrupts

SETUP = """
import os, signal, sys, numpy as np, jax, jax.numpy as jnp, nfk
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent such as nohup may have it ignored
rng = np.random.default_rng(0)
press = lambda: os.kill(os.getpid(), signal.SIGINT)
def told(work):
    try:
        work()
    except nfk.Interrupted as stop:
        print("Interrupted", stop.result is not None)
    except KeyboardInterrupt:
        print("KeyboardInterrupt")
    else:
        print("nothing")
"""

NETWORK = """
X = rng.standard_normal((300, 6), dtype=np.float32)
calls = []
def score(w, x):
    calls.append(1)  # at every trace: while planning, while compiling
    if len(calls) == AT:
        press()
    return jnp.sum(jnp.tanh(x @ w))
told(lambda: nfk.fit(nfk.energy(score, rng.standard_normal((6, 9), dtype=np.float32)), X, 4))
"""


def run(script: str) -> str:
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.around
@pytest.mark.parametrize("trace", [1, 2, 4])
def test_while_planning_or_compiling(trace):
    assert run(SETUP + NETWORK.replace("AT", str(trace))) == "Interrupted False"


@pytest.mark.around
def test_swallowed_by_a_callback_it_is_raised_all_the_same():
    """A callback that catches everything, as those of other libraries may, cannot make a fit run on."""
    script = """
def callback(x):
    callback.calls += 1
    try:
        if callback.calls == 700:
            press()
    except BaseException:
        pass
    return x
callback.calls = 0
def score(w, x):
    x = jax.pure_callback(callback, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")
    return jnp.sum(jnp.tanh(x @ w))
X = rng.standard_normal((300, 6), dtype=np.float32)
told(lambda: nfk.fit(nfk.energy(score, rng.standard_normal((6, 9), dtype=np.float32)), X, 4, keep=False, tol=1e-12))
"""
    assert run(SETUP + script).startswith("Interrupted")


@pytest.mark.around
def test_pressed_at_the_very_end_the_whole_result_is_kept():
    script = """
from nfk import fitting
original = fitting.loop
def late(*arguments):
    result = original(*arguments)
    press()
    return result
fitting.loop = late
X = rng.standard_normal((300, 6), dtype=np.float32)
told(lambda: nfk.fit(nfk.energy(lambda w, x: jnp.sum(x @ w), rng.standard_normal((6, 9), dtype=np.float32)), X, 1))
"""
    assert run(SETUP + script) == "Interrupted True"


def test_an_ignored_signal_stays_ignored_and_a_handler_is_left_alone():
    for handler in (signal.SIG_IGN, lambda *arguments: None):
        previous = signal.signal(signal.SIGINT, handler)
        try:
            with interrupts.deferred():
                assert signal.getsignal(signal.SIGINT) is handler
        finally:
            signal.signal(signal.SIGINT, previous)


def test_the_second_press_stops_at_once_and_nothing_is_left_behind():
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():  # noqa: PT012
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it should have been raised by now")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        interrupts.check()  # the flag is down again
    finally:
        signal.signal(signal.SIGINT, previous)
