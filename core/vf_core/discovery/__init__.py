"""Which plugins there are and which of them load: found by what distributions say, each tried in its own process."""

from vf_core.discovery.candidates import Candidate, candidates
from vf_core.discovery.trying import Broken, Found, discover

__all__ = ["Broken", "Candidate", "Found", "candidates", "discover"]
