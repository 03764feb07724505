"""An examination before a long run: what would make a fit fail, or its result meaningless, found on a few examples."""

from nfk.doctor.diagnosis import Diagnosis, Finding
from nfk.doctor.visit import doctor

__all__ = ["Diagnosis", "Finding", "doctor"]
