"""Records between this project's traces and the layouts of verifiers' releases.

The release that is written for (0.2.1.dev64, record version 2) forbids unknown fields at every level. What it does
not know is moved to `info["vf_tui"]["record"]`, which mirrors the record's shape (list entries by their index), and
put back on reading. Reading also understands the later layout, where a line is an episode with `traces` inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vf_core.trace.plain import plain

if TYPE_CHECKING:
    from vf_core.trace.record import Trace

EXTRA = "vf_tui"
BEYOND = "record"


@dataclass(frozen=True, slots=True)
class Only:
    """A field that takes values of certain types, or certain values, and nothing else."""

    types: tuple[type, ...] = ()
    values: frozenset[str] = frozenset()

    def __contains__(self, value: Any) -> bool:
        return value in self.values if self.values else isinstance(value, self.types)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose entries have one shape."""

    entry: Any


def _known(names: str, **shapes: Any) -> dict[str, Any]:
    """The shape of an object: fields of any value, and fields of a shape of their own."""
    return {**dict.fromkeys(names.split()), **shapes}


def _by(key: str, shapes: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The shape that the value's own `key` names; one that it names in vain is not known at all."""
    return lambda value: shapes.get(str(value.get(key)), _NOWHERE) if isinstance(value, dict) else None


_NOWHERE = Only(types=())
_TEXT, _NUMBER, _FLAG = Only((str,)), Only((int, float)), Only((bool,))
_CONTENT = ListOf(
    _by("type", {"text": _known("type text"), "image_url": _known("type", image_url=_known("url"))})
)
_MESSAGE = _by(
    "role",
    {
        "system": _known("role", content=_CONTENT),
        "user": _known("role", content=_CONTENT),
        "assistant": _known(
            "role content reasoning_content provider_state", tool_calls=ListOf(_known("id name arguments"))
        ),
        "tool": _known("role tool_call_id name", content=_CONTENT),
    },
)
_SIZE = {"cpu": _NUMBER, "memory": _NUMBER, "gpu": _TEXT, "disk": _NUMBER}
_BOX = {"type": None, "id": _TEXT, "image": _TEXT, "workdir": _TEXT, **_SIZE}
_REMOTE = {**_BOX, "network_access": _FLAG, "region": _TEXT}
_RUNTIME = _by(
    "type",
    {
        "subprocess": _known("type", id=_TEXT),
        "docker": _BOX,
        "prime": {
            **_REMOTE,
            "vm": _FLAG,
            "guaranteed": _FLAG,
            "labels": Only((list,)),
            "idle_timeout": _NUMBER,
            "creates_per_min": Only((int,)),
            "image_cached": _FLAG,
        },
        "modal": {**_REMOTE, "creates_per_sec": _NUMBER},
    },
)
_USAGE = _known("prompt_tokens completion_tokens cached_input_tokens reasoning_tokens cost")
_ERROR = _known("type message status_code traceback")
_SPAN = _known("start end")
_CALL = _known(
    "node model sampling endpoint",
    finish_reason=Only(values=frozenset({"stop", "length", "tool_calls"})),
    usage=_USAGE,
    time=_SPAN,
    error=_ERROR,
)
_TIMING = _known(
    "start",
    boot=_SPAN,
    setup=_SPAN,
    generation=_known("start end", model=_known("duration"), harness=_known("duration")),
    finalize=_SPAN,
    scoring=_SPAN,
)
_DATA = _known(
    "idx name description system_prompt image workdir",
    prompt=ListOf(_MESSAGE),
    timeout=_known("setup harness finalize scoring"),
    resources=_known("cpu memory gpu disk"),
)
_RECORD = _known(
    "id version rewards metrics info is_completed stop_condition",
    task=_known("type", data=_DATA),
    runtime=_RUNTIME,
    verifiers=_known("version commit"),
    run=_known("type id step"),
    agent=_known("model sampling", harness=_known("id runtime env forward_env disabled_tools")),
    nodes=ListOf(
        _known(
            "parent sampled timestamp token_ids mask is_content logprobs multi_modal_data routed_experts kept_tokens",
            message=_MESSAGE,
        )
    ),
    tools=ListOf(_known("name description parameters strict")),
    calls=ListOf(_CALL),
    extra_usage=ListOf(_USAGE),
    errors=ListOf(_ERROR),
    timing=_TIMING,
)


def dump(trace: Trace[Any, Any]) -> dict[str, Any]:
    """All of `trace` as JSON-able values; what is no JSON (a hook may put anything into `info`) is told as text."""
    dumped: dict[str, Any]
    try:
        dumped = trace.model_dump(mode="json", exclude_none=True, fallback=plain, warnings=False)
    except (ValueError, TypeError, RecursionError):
        # A cycle, bytes that are no text: only the open maps can hold such things.
        safe = trace.model_copy(update={"info": plain(trace.info)})
        dumped = safe.model_dump(exclude_none=True, fallback=plain, warnings=False)
    # These may hold numbers that JSON lacks, which pydantic passes on.
    return dumped | {
        key: plain(dumped[key]) for key in ("task", "rewards", "metrics", "info") if key in dumped
    }


def write(record: dict[str, Any]) -> dict[str, Any]:
    """`record` with everything that the release does not know moved to `info`."""
    known: dict[str, Any]
    known, beyond = _split(record, _RECORD)
    if beyond:
        extra = known.setdefault("info", {}).setdefault(EXTRA, {})
        if isinstance(extra, dict):
            extra[BEYOND] = beyond
    # The one field that the release requires though it may be null.
    known["task"]["data"].setdefault("prompt", None)
    return known


def _split(value: Any, shape: Any) -> tuple[Any, Any]:
    """`value` as far as `shape` knows it, and the rest in the same shape (empty: nothing)."""
    if callable(shape):
        shape = shape(value)
    if isinstance(shape, dict) and isinstance(value, dict):
        known, beyond = {}, {}
        for key, field in value.items():
            if key not in shape or (isinstance(shape[key], Only) and field not in shape[key]):
                beyond[key] = field
                continue
            known[key], rest = _split(field, shape[key])
            if rest:
                beyond[key] = rest
            if known[key] is _NOWHERE:
                del known[key]
        return known, beyond
    if isinstance(shape, ListOf) and isinstance(value, list):
        parts = [_split(entry, shape.entry) for entry in value]
        return [part[0] for part in parts], {str(i): part[1] for i, part in enumerate(parts) if part[1]}
    if shape is _NOWHERE:
        return _NOWHERE, value
    return value, {}


def _join(known: Any, beyond: Any) -> Any:
    """The inverse of `_split`; neither argument is changed."""
    if isinstance(known, dict) and isinstance(beyond, Mapping):
        joined = dict(known)
        for key, rest in beyond.items():
            joined[key] = _join(known[key], rest) if key in known else rest
        return joined
    if isinstance(known, list) and isinstance(beyond, Mapping):
        entries = list(known)
        for key, rest in beyond.items():
            if key.isdecimal() and int(key) < len(entries):
                entries[int(key)] = _join(entries[int(key)], rest)
        return entries
    return known


def read(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as this project's `Trace` takes it: moved fields are back, the later layout is mapped."""
    out = dict(record)
    info = out.get("info")
    extra = info.get(EXTRA) if isinstance(info, Mapping) else None
    if isinstance(info, Mapping) and isinstance(extra, Mapping) and isinstance(extra.get(BEYOND), Mapping):
        rest = {key: value for key, value in extra.items() if key != BEYOND}
        out["info"] = {**info, EXTRA: rest} if rest else {k: v for k, v in info.items() if k != EXTRA}
        out = dict(_join(out, extra[BEYOND]))
    return _from_later(out) if _is_later(out) else out


def episode_traces(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The trace records of one line: itself, or those inside an episode, which then stands in each one's `info`."""
    traces = line.get("traces")
    if not isinstance(traces, list):
        return [dict(line)]
    episode = {key: line[key] for key in ("id", "env", "group", "ok", "is_timeout", "errors") if key in line}
    out = []
    for position, record in enumerate(traces):
        if not isinstance(record, Mapping):
            continue
        info = record.get("info")
        info = dict(info) if isinstance(info, Mapping) else {}
        info[EXTRA] = {**(info.get(EXTRA) or {}), "episode": {**episode, "position": position}}
        shared = {key: line[key] for key in ("run", "task") if key in line}
        out.append({**shared, **record, "info": info})
    return out


def _is_later(record: Mapping[str, Any]) -> bool:
    agent, timing, rewards = record.get("agent"), record.get("timing"), record.get("rewards")
    return (
        (isinstance(agent, Mapping) and "config" in agent)
        or (isinstance(timing, Mapping) and "agent" in timing)
        or (isinstance(rewards, Mapping) and any(not isinstance(v, int | float) for v in rewards.values()))
    )


def _from_later(record: dict[str, Any]) -> dict[str, Any]:
    """The later layout's agent, rewards and timing under this layout's names; the originals are kept beside them."""
    out = {k: v for k, v in record.items() if k not in _DERIVED} | {"version": 2}
    agent = record.get("agent")
    if isinstance(agent, Mapping):
        config = agent.get("config")
        config = config if isinstance(config, Mapping) else {}
        named = {key: config[key] for key in ("model", "sampling", "harness") if config.get(key) is not None}
        out["agent"] = {"model": "", **agent, **named}
        if isinstance(agent.get("runtime"), Mapping):
            out["runtime"] = agent["runtime"]
    rewards = record.get("rewards")
    if isinstance(rewards, Mapping) and not all(isinstance(v, int | float) for v in rewards.values()):
        out["rewards"] = {k: _contribution(v) for k, v in rewards.items() if v is not None}
        out["reward_scores"] = rewards
    metrics = record.get("metrics")
    if isinstance(metrics, Mapping):
        out["metrics"] = {k: v for k, v in metrics.items() if v is not None}
    timing = record.get("timing")
    if isinstance(timing, Mapping) and "agent" in timing:
        rest = {k: v for k, v in timing.items() if k != "agent"}
        out["timing"] = {**rest, "generation": timing["agent"]}
    return out


_DERIVED = frozenset(("num_input_tokens", "num_output_tokens", "num_total_tokens"))


def _contribution(reward: Any) -> Any:
    if isinstance(reward, Mapping):
        return reward.get("score", 0.0) * reward.get("weight", 1.0)
    return reward
