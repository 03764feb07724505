"""One loop for every method: it goes on until the method is done, and tells each finished state.

How far a search has come is a value, the state; a method is functions of it. Whoever listens may keep the last state,
write it to a file, or raise `KeyboardInterrupt` between two of them.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from nfk.solve.svd import SVD

State = TypeVar("State")


class Method(Protocol[State]):
    """A way to the leading singular triplets.

    `step` may use up the block that a state goes on with, but never what `salvage` needs of it.
    """

    def init(self) -> State:
        """Before the first step."""
        ...

    def step(self, state: State) -> State:
        """One step further: the passes that it needs."""
        ...

    def done(self, state: State) -> bool: ...

    def label(self, state: State) -> str:
        """What the next step is called."""
        ...

    def note(self, state: State) -> str:
        """What is known by now, in a word or two."""
        ...

    def conclude(self, state: State) -> SVD:
        """The certified result; the state is used up."""
        ...

    def salvage(self, state: State) -> SVD | None:
        """What a finished state is worth when there is no time to go on."""
        ...


class Events(Protocol):
    """Who is told how far the loop has come."""

    def stage(self, label: str) -> None: ...
    def finished(self, state: object, note: str) -> None: ...


def loop(method: Method[State], events: Events, state: State | None = None) -> SVD:
    """From `state`, or from the beginning, to the certified result."""
    if state is None:
        events.stage("start")
        state = method.init()
    while not method.done(state):
        events.stage(method.label(state))
        state = method.step(state)
        events.finished(state, method.note(state))
    events.stage("certificate")
    return method.conclude(state)
