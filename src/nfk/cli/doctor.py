"""`nfk doctor`: what to mend before a long fit."""

from __future__ import annotations

from nfk.cli.models import model_named
from nfk.cli.options import DataName, Memory, ModelName
from nfk.cli.ranks import Rank, rank_for
from nfk.cli.reading import Reading, read
from nfk.cli.saying import Saying, Spoken
from nfk.cli.texts import tokenizer_folder


def doctor(
    model: ModelName,
    data: DataName,
    /,
    rank: Rank = None,
    memory: Memory = None,
    reading: Reading = Reading(),  # noqa: B008
    saying: Spoken = Saying(),  # noqa: B008
) -> int:
    """Look for what to mend before a long fit.

    It looks at a few examples. Every finding comes with its remedy. The exit code is 1 if one of them is an error.

    Example: nfk doctor mine.py:model images/
    """
    from nfk.doctor import doctor as visit

    network = model_named(model)
    examples = read(data, reading.suited_to(network), tokenizer_folder(model)).examples
    found = visit(network, examples, rank_for(rank, network, examples), memory=memory)
    saying.answer(found.to_dict(), str(found))
    return 0 if found.ok else 1
