"""One rollout through its phases."""

from vf_core.rollout.attempt import Attempt
from vf_core.rollout.context import Result, RolloutSpec, RunContext

__all__ = ["Attempt", "Result", "RolloutSpec", "RunContext"]
