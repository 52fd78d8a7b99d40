"""A run whose rollouts end in every way, with own and shared tools and a judge: its config, and what its model says.

`python tests/doubles/mixed.py DIR HARNESS [SECONDS_A_TOKEN]` writes one to look at, with its own server of releases.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ENDS = ("finish", "decline", "fail", "die", "misjudge")
"""Tasks: completed after failed tool calls, declined, a failed program, a killed one, a judge without a verdict."""
HOSTILE = "\x1b[31mred\x1b[2J \x1b]0;title\x07 [bold red]markup[/] [/oops] \u202e\x9b1m"
"""What tools, models and judges say here: sequences of a terminal's, and markup."""

Say = Mapping[str, Any]
DIES: dict[str, list[Say]] = {
    "pool": [{"text": "signal 9"}],
    "bash": [{"calls": [{"name": "bash", "arguments": {"command": "kill -9 $PPID; sleep 60"}}]}],
    "null": [{"calls": [{"name": "desk_strike"}]}],
}
"""By harness: how the model has its program killed."""
FAILS: dict[str, Say] = {
    "pool": {"text": "exit 3"},
    "bash": {"fault": {"kind": "status", "status": 400, "message": HOSTILE, "times": 0}},
    "null": {"fault": {"kind": "status", "status": 400, "message": HOSTILE, "times": 0}},
}
"""By harness: what makes its program fail."""


def call(name: str, **arguments: str) -> Say:
    """A turn with one tool call."""
    return {"calls": [{"name": name, "arguments": arguments}]}


def rules(harness: str) -> list[dict[str, Any]]:
    """What the model says: the judge's part of it first, then each task's."""
    use = [call("desk_note", text=HOSTILE), call("db_get", word="capital")]
    stumble = [call("desk_fail", why=HOSTILE), call("nothing", at="all")]
    ends: dict[str, list[Say]] = {
        "finish": [*use, *stumble, {"text": f"42 {HOSTILE}", "reasoning": HOSTILE}],
        "decline": [*use, {"refusal": f"no {HOSTILE}"}],
        "fail": [*use, FAILS[harness]],
        "die": [*use, *DIES[harness]],
        "misjudge": [*use, {"text": "42"}],
    }
    verdicts = {"misjudge": f"perhaps {HOSTILE}", "decline": "no", "": "yes"}
    judge = [
        {"name": f"judge {name}", "task": f"You grade .*--{name}", "step": [{"text": says}]}
        for name, says in verdicts.items()
    ]
    return judge + [{"name": name, "task": f"--{name}$", "step": steps} for name, steps in ends.items()]


LOCAL = 'type = "subprocess"'


def write(
    place: Path, harness: str, *, head: str = "", options: str = "", runtime: str = LOCAL, pace: float = 0.0
) -> None:
    """`eval.toml` and `says.toml` in `place`; the texts are lines of the tables that they are named after."""
    names, judge = json.dumps(ENDS), 'id = "reference"\nmodel = "scripted-judge"\nname = "correct"'
    (place / "eval.toml").write_text(
        f'model = "m"\n{head}\n[env.taskset]\nid = "vf_test_mixed"\nnames = {names}\n'
        f"[[env.taskset.task.judges]]\n{judge}\n"
        f'[env.agent.harness]\nid = "{harness}"\n{options}\n[env.agent.runtime]\n{runtime}\n'
    )
    # JSON's strings, tables apart, are TOML's.
    said = [f'model = "scripted-mixed"\n[pace]\nfirst_token = {pace * 20}\nper_token = {pace}']
    for rule in rules(harness):
        said.append(f"[[rule]]\nname = {json.dumps(rule['name'])}\ntask = {json.dumps(rule['task'])}")
        said += [f"[[rule.step]]\n{_table(step)}" for step in rule["step"]]
    (place / "says.toml").write_text("\n".join(said))


def _table(table: Say) -> str:
    return "\n".join(f"{key} = {_value(value)}" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, list) else json.dumps(value)


if __name__ == "__main__":
    from pool.releases import Releases

    releases = Releases()
    pool = f'version = "0.0.6-look"\nrelease_base = "{releases.base}"' if sys.argv[2] == "pool" else ""
    write(Path(sys.argv[1]), sys.argv[2], options=pool, pace=float(sys.argv[3]) if sys.argv[3:] else 0.0)
    releases.serve()
