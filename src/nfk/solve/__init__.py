"""The leading singular triplets of an operator that is only ever applied, each with a bound on its error."""

from nfk.solve.goal import ConvergenceWarning, Goal, Interrupted
from nfk.solve.loop import Events, Method, loop
from nfk.solve.svd import SVD

__all__ = ["SVD", "ConvergenceWarning", "Events", "Goal", "Interrupted", "Method", "loop"]
