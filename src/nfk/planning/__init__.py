"""What a fit, a call or an exact kernel will do and cost, before it runs, and the cheapest way within a budget."""

from nfk.planning.batches import Batches
from nfk.planning.options import Basis, Engine, Keep, MethodName, Options, ScratchFolder, Search, SideName
from nfk.planning.planner import Plan, plan_fit, plan_gram, plan_rows
from nfk.planning.problem import Problem, Target
from nfk.planning.ways import Way

__all__ = [
    "Basis", "Batches", "Engine", "Keep", "MethodName", "Options", "Plan", "Problem", "ScratchFolder", "Search",
    "SideName",
    "Target", "Way", "plan_fit", "plan_gram", "plan_rows",
]  # fmt: skip
