"""What an examination found: named findings, each with its remedy, as a value that prints itself."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "warning", "error"]
TEXT_WIDTH, NAME_WIDTH = 110, 20


@dataclass(frozen=True)
class Finding:
    """One check: what was seen, and what to do about it where it is not well.

    An "error" makes a fit fail or its result meaningless; a "warning" is worth a look.
    """

    name: str
    level: Level
    seen: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        return self.level == "ok"

    def __str__(self) -> str:
        start = f"  {self.level:<8} {self.name:<{NAME_WIDTH}} "
        text = _wrapped(self.seen, start, " " * len(start))
        if self.remedy:
            text += "\n" + _wrapped(self.remedy, " " * len(start) + "-> ", " " * (len(start) + 3))
        return text


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """All findings about `patient`, a model and its data. `print` it; `ok` says that nothing is an error."""

    patient: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "warning")

    def __getitem__(self, name: str) -> Finding:
        """The finding of that name."""
        found = {finding.name: finding for finding in self.findings}
        if name not in found:
            raise KeyError(f"no finding is called {name!r}: there are {', '.join(found)}")
        return found[name]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"patient": self.patient, "ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def __str__(self) -> str:
        counts = [_count(len(self.errors), "error"), _count(len(self.warnings), "warning")]
        verdict = " and ".join(count for count in counts if count) or "nothing to mend"
        return "\n".join([f"Diagnosis: {verdict}", f"  {self.patient}", *map(str, self.findings)])

    __repr__ = __str__


def _count(number: int, noun: str) -> str:
    return "" if number == 0 else f"{number} {noun}" + "s" * (number > 1)


def _wrapped(text: str, first: str, later: str) -> str:
    """Wrapped, every line of the text on its own."""
    indents = [first] + [later] * text.count("\n")
    parts = zip(text.splitlines(), indents, strict=False)
    return "\n".join(
        textwrap.fill(line, TEXT_WIDTH, initial_indent=indent, subsequent_indent=later, break_on_hyphens=False)
        for line, indent in parts
    )
