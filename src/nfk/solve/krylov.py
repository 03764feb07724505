"""Block Krylov with full reorthogonalisation: the default way to the leading singular vectors.

A symmetric operator A (V'V on the parameters' side, VV' on the examples' side, see `sides`) is applied to one block
after another. With the orthonormal basis W = [W_1 ... W_j] and its projected matrix W'AW,

    A W_j = W (W' A W_j) + R        R, the remainder, is where the next block comes from

and for a Ritz pair (theta, W y) the residual is |R y_j|, with y_j the part of y that belongs to the newest block. When
the basis is full, its best vectors take its place and R goes on (a thick restart): no pass is lost.

A basis may be stored in bfloat16, in half of the memory. Its blocks are rounded *before* A is applied to them, so all
that is known of them is true of the numbers that are stored; but these are not orthonormal. Their Gram matrix
M = W'W, the metric, takes its place in the projected problem:

    W'AW y = theta M y        A W_j = W M^-1 (W' A W_j) + R

What rounding took from a block is lost to the basis. It is a part of 2^-9 that lies nearly outside of the rows of V: so
the right vectors are made anew, as V' (V W y), and all of them are certified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.linalg
from jaxtyping import Float

from nfk.solve.certify import Known, certify, clear_directions, improved, unverified, verify
from nfk.solve.goal import Goal, limit_of
from nfk.solve.sides import Remainder, Side
from nfk.solve.svd import SVD
from nfk.spaces import Block, eigh, orthonormalise, project_out

MARGIN = 0.9  # the search stops a little below the tolerance, since the certificate may differ in its last digits
ROUNDING = 30.0  # what is shorter than so many eps is rounding error
PROBES = 10  # random combinations by which the result is verified


@dataclass(frozen=True)
class Ritz:
    """Ritz values (falling), their coefficients in the basis, and the norms of their residuals."""

    values: Float[np.ndarray, " n"]
    vectors: Float[np.ndarray, "n n"]
    residuals: Float[np.ndarray, " n"]


@dataclass(frozen=True)
class KrylovState:
    """How far a search has come: the basis, what A made of it, and where it goes on."""

    basis: tuple[Block, ...]  # none any more at the end of a search whose basis is rounded
    images: tuple[Block, ...]
    projected: Float[np.ndarray, "n n"]
    remainder: Block  # nor this one
    outside: Float[np.ndarray, "b b"]  # R'R
    metric: Float[np.ndarray, "n n"] | None = None  # of a basis that is rounded; None for an orthonormal one
    step: int = 0
    cycle: int = 0  # columns of the basis when it was last found to be invariant, and a random block went on
    exhausted: bool = False  # nothing is left outside the basis

    @property
    def size(self) -> int:
        """Columns of the basis."""
        return len(self.projected)

    @cached_property
    def ritz(self) -> Ritz:
        values, vectors = eigh(self.projected, b=self.metric)
        values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
        if len(self.outside) > self.size:  # just restarted: R belongs to a block that is no longer there
            return Ritz(values, vectors, np.full(len(values), np.inf))
        newest = vectors[self.size - len(self.outside) :]
        squares = np.einsum("ij,ik,kj->j", newest, self.outside, newest, optimize=True)
        return Ritz(values, vectors, np.sqrt(np.maximum(squares, 0)))

    def invariant(self, dtype: np.dtype) -> bool:
        """Whether A, computed in that precision, leads out of the basis by rounding error alone."""
        outside = scipy.linalg.eigvalsh(self.outside)[-1] if self.outside.size else 0.0
        return bool(outside <= (ROUNDING * np.finfo(dtype).eps * self.ritz.values[0]) ** 2)


def init(side: Side, start: Block, seed: Sequence[int]) -> KrylovState:
    """Before the first step: an orthonormal block to begin with; where `start` has lower rank, random directions
    fill it up. Gives up the memory of `start`."""
    space, width = side.space, start.shape[1]
    block = orthonormalise(space, start, (), float(space.norms(start).max(initial=0)))
    if block.shape[1] < width:
        fill = project_out(space, side.random(seed, width - block.shape[1]), [block])
        block = space.joined([block, orthonormalise(space, fill, [block], 0.0)])
    return KrylovState((), (), np.zeros((0, 0)), block, np.zeros((0, 0)))


def step(side: Side, state: KrylovState, seed: Sequence[int], width: int, rounded: bool = False) -> KrylovState:
    """One block more: A applied to what points out of the basis. One pass on the parameters' side, two on the other.

    Where nothing does, a random block takes its place: an eigenvalue has more copies than a block has columns, or there
    is nothing left. Gives up the memory of the old remainder.
    """
    space, block, cycle = side.space, state.remainder, state.cycle
    if fresh := bool(state.basis) and state.invariant(side.operator.dtype):
        drawn = project_out(space, side.random([*seed, state.step], width), state.basis)
        block, cycle = orthonormalise(space, drawn, state.basis, 1.0), state.size
    elif state.basis:
        block = orthonormalise(space, block, state.basis, state.ritz.values[0])
    if block.shape[1] == 0:
        return replace(state, remainder=block, outside=np.zeros((0, 0)), exhausted=True)
    stored = space.rounded(block) if rounded else block
    image, kept = side.apply(block)
    basis, images = (*state.basis, stored), (*state.images, kept)
    columns = side.projected_columns(basis, images)
    metric = _metric(side, state, basis, block) if rounded else None
    remainder = project_out(space, image, basis, columns if metric is None else np.linalg.solve(metric, columns))
    found = KrylovState(
        basis, images, _bordered(state.projected, columns), remainder, space.inner(remainder, remainder), metric,
        step=state.step + 1, cycle=cycle,
    )  # fmt: skip
    return replace(
        found, exhausted=fresh and found.invariant(side.operator.dtype) and _is_nothing(side, found, columns)
    )


def _is_nothing(side: Side, state: KrylovState, columns: Float[np.ndarray, "n b"]) -> bool:
    """Whether A makes rounding error alone of the newest block: of its part outside of those before.

    Of a basis that is rounded, only what the part has with itself counts: eigenvectors leave such a basis by 2^-9 of
    their length, and all that a new block has of them would look like something.
    """
    before = state.size - columns.shape[1]
    if state.metric is not None:
        inside = np.linalg.solve(state.metric[:before, :before], state.metric[:before, before:])
        columns = columns - state.projected[:, :before] @ inside
        columns = columns[before:] - inside.T @ columns[:before]
    return bool(np.abs(columns).max() <= ROUNDING * np.finfo(side.operator.dtype).eps * state.ritz.values[0])


def _metric(side: Side, state: KrylovState, basis: Sequence[Block], newest: Block) -> Float[np.ndarray, "n n"]:
    """W'W, with the newest block."""
    before = np.zeros((0, 0)) if state.metric is None else state.metric
    return _bordered(before, np.concatenate([side.space.inner(block, newest) for block in basis]))


def restarted(side: Side, state: KrylovState, count: int) -> KrylovState:
    """The best `count` Ritz vectors as the basis, with their images; the remainder goes on. No pass. They are not
    rounded again: what is known of them would not be true any more."""
    chosen = state.ritz.vectors[:, :count]
    return replace(
        state,
        basis=(side.space.combine(state.basis, chosen, state.remainder.dtype),),
        images=(side.image_space.combine(state.images, chosen),),
        projected=np.diag(state.ritz.values[:count]),
        metric=None if state.metric is None else np.eye(count),
        cycle=0,
    )


@dataclass(frozen=True)
class Krylov:
    """The method: blocks of `width` columns until every wanted residual is below `goal.tol`.

    The basis has `capacity` columns at the most; then it restarts from its best `kept` vectors. `start` is a block to
    begin with, random by default. `rounded` stores the basis in bfloat16 (on the parameters' side). One pass more
    certifies; two where the basis is rounded, three on the examples' side.
    """

    side: Side
    goal: Goal
    seed: Sequence[int]
    width: int
    capacity: int
    kept: int
    most_steps: int = 30
    start: Block | None = None
    rounded: bool = False

    def init(self) -> KrylovState:
        width = min(self.width, *self.side.operator.shape)
        start = self.side.random(self.seed, width) if self.start is None else self.start
        return init(self.side, start, self.seed)

    def step(self, state: KrylovState) -> KrylovState:
        if self._is_full(state):
            state = restarted(self.side, state, self.kept)
        found = step(self.side, state, self.seed, self.width, self.rounded)
        # Of a basis that is rounded, the images alone are needed from here on: its memory is free for what comes.
        return replace(found, basis=(), remainder=None) if self.rounded and self.done(found) else found

    def _is_full(self, state: KrylovState) -> bool:
        return state.size > 0 and state.size + self.width > self.capacity

    def done(self, state: KrylovState) -> bool:
        if state.exhausted or state.step >= self.most_steps:
            return True
        if not state.size:
            return False
        # A share of variance may take every vector of a full basis: a restart would drop those that are wanted.
        return self.converged(state) or (self.goal.variance is not None and self._is_full(state))

    def converged(self, state: KrylovState) -> bool:
        """Every wanted component is below the tolerance, or at the limit of the precision: eps * s_1 * s_i."""
        ritz = state.ritz
        limit = 30 * np.finfo(self.side.operator.dtype).eps * np.sqrt(ritz.values[0] * ritz.values)
        if state.exhausted:
            return True
        wanted = self.goal.wanted(ritz.values) or self.goal.most
        if self.side.floor and wanted <= state.size and ritz.values[wanted - 1] <= self.side.floor:
            return True  # nothing more can be seen here: `conclude` goes on with what is exact
        if self.goal.worst(ritz.values, ritz.residuals, limit) > MARGIN * self.goal.tol:
            return False
        dtype = self.side.operator.dtype
        unclear = ritz.values[self._count(state) - 1] <= ROUNDING * np.finfo(dtype).eps * ritz.values[0]
        return self._complete(state) if unclear or state.invariant(dtype) else True

    def _complete(self, state: KrylovState) -> bool:
        """Whether the basis is invariant and the last random block has brought nothing that is wanted: then no copy of
        a wanted eigenvalue is missing, and what is zero is zero."""
        count = self._count(state)
        if state.cycle < count or not state.invariant(self.side.operator.dtype):
            return False
        part = slice(0, state.cycle)
        metric = None if state.metric is None else state.metric[part, part]
        before = scipy.linalg.eigvalsh(state.projected[part, part], metric)[-count:]
        return np.sum(state.ritz.values[:count]) - np.sum(before) <= 1e-3 * self.goal.tol * np.sum(before)

    def label(self, state: KrylovState) -> str:
        return f"Krylov step {state.step + 1}"

    def note(self, state: KrylovState) -> str:
        worst = self.goal.worst(state.ritz.values, state.ritz.residuals) if state.size else np.inf
        return f"residual {worst:.0e}" if np.isfinite(worst) else ""

    def conclude(self, state: KrylovState) -> SVD:
        operator = self.side.operator
        found = improved(operator, self._made_anew(state), self.goal.tol) if self.rounded else self._verified(state)
        if self.side.exact is not self.side and self._is_missed(found):
            return self._exactly()
        result = self.goal.of(found)
        limit = "the limit of a basis in bfloat16; use basis='full'" if self.rounded else limit_of(operator.dtype)
        self.goal.warn(result, limit if self.converged(state) else "raise max_steps")
        return result

    def _is_missed(self, found: SVD) -> bool:
        """Whether a coarse search has not found all that is wanted."""
        values = found.singular_values**2
        count = self.goal.wanted(values)
        if count is None or count > len(values) or found.residuals.max(initial=0) > self.goal.tol:
            return True
        return bool(values[count - 1] <= self.side.floor)

    def _exactly(self) -> SVD:
        """The same search with all digits, from the beginning."""
        search = replace(self, side=self.side.exact, rounded=False, start=None)
        state = search.init()
        while not search.done(state):
            state = search.step(state)
        return search.conclude(state)

    def _verified(self, state: KrylovState) -> SVD:
        probes = min(PROBES, max(self.width, 1))
        return verify(self.side.operator, self._known(state), [*self.seed, 1], probes, self.goal.tol)

    def _made_anew(self, state: KrylovState) -> SVD:
        """V' (V W y) in place of W y, which is rounded; certified in full, since what rounding took is not known."""
        operator, count = self.side.operator, self._count(state)
        lengths = np.sqrt(state.ritz.values[:count])
        clear = lengths > ROUNDING * np.finfo(operator.dtype).eps * lengths[0]
        left = self.side.image_space.combine(state.images, state.ritz.vectors[:, :count][:, clear] / lengths[clear])
        found = certify(operator, clear_directions(operator, self.side.right_of(left))[0])
        return found.first(count)

    def _known(self, state: KrylovState, last: bool = True) -> Known:
        """Both sides of the wanted Ritz vectors; with what the `last` step has left outside the basis."""
        ritz, side = state.ritz, self.side
        chosen = ritz.vectors[:, : self._count(state)]
        vectors = side.space.combine(state.basis, chosen, state.remainder.dtype)
        images = side.image_space.combine(state.images, chosen)
        width = state.remainder.shape[1] if last else 0
        outside = Remainder(state.remainder, chosen[state.size - width :]) if width else None
        return side.known(vectors, images, ritz.values[: chosen.shape[1]], outside)

    def _count(self, state: KrylovState) -> int:
        return min(self.goal.wanted(state.ritz.values) or self.goal.most, state.size)

    def salvage(self, state: KrylovState) -> SVD | None:
        """With the recurrence's residuals in place of verified ones: a step that was broken off has used up R. Where
        the basis is rounded, those residuals know nothing of it, and it takes two passes."""
        if not state.size:
            return None
        if self.rounded:
            return self._made_anew(state)
        values = state.ritz.values[: self._count(state)]
        residuals = state.ritz.residuals[: len(values)] / np.where(values > 0, values, 1)
        return unverified(self.side.operator, self._known(state, last=False), residuals)


def _bordered(matrix: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The symmetric matrix that `columns` (its last columns) extend."""
    size, width = columns.shape
    result = np.zeros((size, size))
    result[: size - width, : size - width] = matrix
    result[:, size - width :] = columns
    result[size - width :, :] = columns.T
    corner = columns[size - width :]
    result[size - width :, size - width :] = (corner + corner.T) / 2
    return result
