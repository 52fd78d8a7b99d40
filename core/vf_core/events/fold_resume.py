"""What a resume does to the totals: what replaced attempts used is set apart, so that the run as a whole counts each
rollout once, as if it had never been interrupted."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

from vf_core.events.state import RolloutView, RunState

USES = {
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "completion_tokens": "completion_tokens",
    "cost": "cost",
    "model_calls": "calls",
    "tool_calls": "tool_count",
    "judge_calls": "judge_calls",
    "judge_prompt_tokens": "judge_prompt_tokens",
    "judge_cached_tokens": "judge_cached_tokens",
    "judge_completion_tokens": "judge_completion_tokens",
    "judge_cost": "judge_cost",
}
"""What is counted in `Totals`, and the counter of a rollout's current attempt that it is made of."""


COSTS = ("cost", "judge_cost")
"""Those that may be unknown."""


def used(r: RolloutView) -> dict[str, float]:
    """What of the totals is this rollout's: its attempts, those that were set apart left out."""
    out = dict(r.past)
    for name, counter in USES.items():
        if (n := getattr(r, counter)) is not None and (n or name in out or name in COSTS):
            out[name] = out.get(name, 0) + n
    return out


def clear(r: RolloutView) -> None:
    """The current attempt used nothing."""
    r.turns = r.calls = r.prompt_tokens = r.cached_tokens = r.completion_tokens = r.tool_count = 0
    r.tokens_known, r.cost, r.calls_open = True, None, 0
    r.judge_calls = r.judge_prompt_tokens = r.judge_cached_tokens = r.judge_completion_tokens = 0
    r.judge_cost = None


def untell(state: RunState, r: RolloutView) -> None:
    """The current attempt is about to be told from its beginning once more."""
    clear(r)
    del r.attempts[-1]
    recount(state)


def set_apart(state: RunState, rollouts: Iterable[RolloutView]) -> None:
    """What `rollouts` used so far is replaced by what follows."""
    redone = state.totals.redone
    for r in rollouts:
        for name, n in used(r).items():
            redone[name] = redone.get(name, 0) + n
        r.past = {}
        clear(r)
    recount(state)


def recount(state: RunState) -> None:
    """Sum anew what is summed: taking floats off a sum leaves their rounding in it."""
    totals = state.totals
    uses = [used(r) for r in state.rollouts.values()]
    for name in USES:
        if name not in COSTS:
            setattr(totals, name, int(sum(use.get(name, 0) for use in uses)))
    for name in COSTS:
        costs = [use[name] for use in uses if name in use]
        setattr(totals, name, fsum(costs) if costs else None)
    rewards = [r.reward for r in state.rollouts.values() if r.reward is not None]
    totals.scored = len(rewards)
    totals.reward_sum = fsum(rewards)
    totals.reward_squares = fsum(reward * reward for reward in rewards)
