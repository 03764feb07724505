"""`nfk plan`: what a fit would cost."""

from __future__ import annotations

from nfk.cli.models import model_named
from nfk.cli.options import DataName, Memory, Method, ModelName, Scratch
from nfk.cli.ranks import Rank, rank_for
from nfk.cli.reading import Reading, read
from nfk.cli.saying import Saying, Spoken
from nfk.cli.texts import tokenizer_folder
from nfk.fitting import plan as plan_of
from nfk.planning import Plan


def plan(
    model: ModelName,
    data: DataName,
    /,
    rank: Rank = None,
    memory: Memory = None,
    scratch: Scratch = None,
    method: Method = "auto",
    reading: Reading = Reading(),  # noqa: B008
    saying: Spoken = Saying(),  # noqa: B008
) -> int:
    """Say what a fit would cost, without running it.

    Example: nfk plan digits-lenet digits --rank 64 --memory 1GB
    """
    network = model_named(model)
    examples = read(data, reading.suited_to(network), tokenizer_folder(model)).examples
    rank = rank_for(rank, network, examples)
    return show_plan(plan_of(network, examples, rank, method=method, memory=memory, scratch=scratch), saying)


def show_plan(found: Plan, saying: Saying) -> int:
    facts = {
        "examples": found.problem.examples, "rows": found.problem.rows, "parameters": found.problem.parameters,
        "method": found.way.method, "engine": found.engine, "side": found.side, "keep": found.keep,
        "passes": found.passes, "flops": found.flops, "seconds": found.seconds, "peak_bytes": found.peak_bytes,
        "budget": found.budget, "parts": found.parts,
    }  # fmt: skip
    saying.answer(facts, str(found))
    return 0
