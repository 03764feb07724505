"""What cannot be done with what was asked or found: said in one sentence, without a traceback."""

from __future__ import annotations


class Refused(ValueError):
    """An unknown experiment, a damaged file, weights of another network: one sentence for the person who asked."""
