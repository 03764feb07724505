"""What a fit, a call or an exact kernel will do and cost, before it runs, and the cheapest way within a budget."""

from nfk.planning.batches import Batches
from nfk.planning.options import Engine, Keep, MethodName, Options, ScratchFolder, SideName
from nfk.planning.planner import Plan, plan_fit, plan_gram, plan_rows
from nfk.planning.problem import Problem
from nfk.planning.ways import Way

__all__ = [
    "Batches", "Engine", "Keep", "MethodName", "Options", "Plan", "Problem", "ScratchFolder", "SideName", "Way",
    "plan_fit", "plan_gram", "plan_rows",
]  # fmt: skip
