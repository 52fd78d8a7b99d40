"""Whose a sandbox is, and whether that engine still lives: only a proven death makes a sandbox a leftover."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vf_core.runtimes.liveness import Whereabouts, here, process_lives, process_start

Standing = Literal["live", "dead", "elsewhere", "unknown"]
LOCAL = "subprocess"
SOCKET = "socket"
_ENGINE_FILE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Owner:
    """The engine that asked for a sandbox: its run, and its process. `start` is the process's start time, `machine`,
    `boot` and `space` where it runs (see `runtimes.liveness`), `user` the number of its user; what is not known is
    empty, a `pid` of 0."""

    run: str
    run_dir: str = ""
    host: str = ""
    machine: str = ""
    boot: str = ""
    space: str = ""
    pid: int = 0
    start: str = ""
    user: str = ""

    @classmethod
    def this_process(cls, run: str, run_dir: Path | str = "") -> Owner:
        """An engine in this process."""
        where, pid = here(), os.getpid()
        return cls(
            run=run,
            run_dir=str(run_dir),
            host=where.host,
            machine=where.machine,
            boot=where.boot,
            space=where.space,
            pid=pid,
            start=process_start(pid),
            user=str(os.geteuid()),
        )

    def labels(self) -> dict[str, str]:
        """As a sandbox's labels: with these, a provider's list alone tells whose it is. What is not known is left
        out, and each value is one that every provider takes (see `label`)."""
        values = {
            "run": self.run,
            "host": self.host,
            "machine": self.machine,
            "boot": self.boot,
            "space": self.space,
            "pid": str(self.pid),
            "started": self.start,
            "user": self.user,
        }
        return {key: label(value) for key, value in values.items() if value}

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Owner:
        """What a provider's list says of it."""
        pid = labels.get("pid", "")
        return cls(
            run=labels.get("run", ""),
            host=labels.get("host", ""),
            machine=labels.get("machine", ""),
            boot=labels.get("boot", ""),
            space=labels.get("space", ""),
            pid=int(pid) if pid.isascii() and pid.isdigit() and len(pid) < 12 else 0,
            start=labels.get("started", ""),
            user=labels.get("user", ""),
        )


_LABEL = re.compile(r"[A-Za-z0-9._-]{1,63}")


def label(text: str) -> str:
    """A label's value: the text itself where every provider takes it, else a digest that only compares."""
    if not text or _LABEL.fullmatch(text):
        return text
    return f"x-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:20]}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an owner lives; `proof` is the sentence for the screen."""

    owner: Standing
    proof: str


def verdict(owner: Owner, kind: str, *, recorded: bool) -> Verdict:
    """Whether the owner of a sandbox of that kind lives. `recorded`: it stands in the ledger. Reads small files."""
    if kind == SOCKET:
        # Only sockets that nobody listens at are listed, and that is tested again when one is removed.
        return Verdict("dead", "nobody listens there: connection refused")
    return judge(owner) if recorded or kind == LOCAL else judge_labels(owner)


def judge(owner: Owner) -> Verdict:
    """Of an owner that this machine wrote down itself. May read small files: not for a hot path."""
    if owner.pid <= 0:
        return Verdict("unknown", "nothing says which process asked for it")
    again = _run_again(owner)
    if again is not None:
        return again
    lives = process_lives(owner.pid, owner.start, _whereabouts(owner))
    return Verdict(lives, _said(owner, lives))


def judge_labels(owner: Owner) -> Verdict:
    """Of an owner that only a provider's list names. The account may be shared by machines of the same name, so a
    death is believed only where it can be seen: on this very boot, of a process that would be visible from here."""
    now = here()
    if owner.pid <= 0 or not owner.host:
        return Verdict("unknown", "its labels do not say which process asked for it")
    if not owner.boot or label(owner.boot) != label(now.boot):
        return _of_another_boot(owner)
    # The same kernel: whoever is in this container would be seen.
    if label(owner.space or now.space) != label(now.space) or not (owner.space or _is_this_host(owner)):
        return Verdict(
            "elsewhere", f"pid {owner.pid} ran in another container of this machine ({owner.host})"
        )
    if owner.user not in ("", str(os.geteuid())):
        return Verdict("elsewhere", f"made by another user of {owner.host} (number {owner.user})")
    owner = replace(owner, machine=now.machine, boot=now.boot, space=now.space)
    again = _run_again(owner)
    if again is not None:
        return again
    lives = process_lives(owner.pid, owner.start, _whereabouts(owner))
    return Verdict(lives, _said(owner, lives))


def _of_another_boot(owner: Owner) -> Verdict:
    now = here()
    if not _is_this_host(owner) or label(owner.machine) not in ("", label(now.machine)):
        return Verdict("elsewhere", f"made on host {owner.host}, which cannot be asked from {now.host}")
    if not owner.boot or not now.boot:
        return Verdict("unknown", f"its labels do not say in which boot of {owner.host} pid {owner.pid} ran")
    return Verdict(
        "unknown", f"made on another boot of {owner.host}, or on another machine of that name; no record here"
    )


def _is_this_host(owner: Owner) -> bool:
    return label(owner.host) == label(here().host)


def _whereabouts(owner: Owner) -> Whereabouts:
    return Whereabouts(owner.host, owner.machine, owner.boot, owner.space)


def _said(owner: Owner, lives: Standing) -> str:
    now = here()
    boot = "this boot" if owner.boot == now.boot else "an earlier boot"
    if lives == "live":
        return f"pid {owner.pid} lives (host {owner.host})"
    if lives == "dead":
        return f"pid {owner.pid} is gone (host {owner.host}, {boot})"
    if owner.host == now.host and owner.boot == now.boot:
        return f"pid {owner.pid} ran in another container of {owner.host}, which cannot be seen from here"
    return f"pid {owner.pid} runs on host {owner.host}, which cannot be asked from {now.host}"


def _run_again(owner: Owner) -> Verdict | None:
    """What the run's own engine file adds: another engine took the run up, or this one closed in peace."""
    found = _engine_of(owner.run_dir)
    if found is None:
        return None
    engine, ended = found
    if engine.pid <= 0 or (engine.run and owner.run and engine.run != owner.run):
        return None
    same = (engine.pid, engine.start, engine.boot) == (owner.pid, owner.start, owner.boot)
    if same:
        if ended:
            return Verdict("dead", f"its engine has closed (pid {owner.pid}, host {owner.host})")
        return None
    lives = "dead" if ended else process_lives(engine.pid, engine.start, _whereabouts(engine))
    if lives == "live":
        return Verdict("live", f"its run is alive again: pid {engine.pid} (host {engine.host})")
    if lives == "elsewhere":
        return Verdict(
            "unknown", f"its run was taken up on host {engine.host}, which cannot be asked from here"
        )
    return None


def _engine_of(run_dir: str) -> tuple[Owner, bool] | None:
    """The engine that a run directory names, and whether it said that it has closed."""
    if not run_dir:
        return None
    try:
        with open(os.path.join(run_dir, "engine.json"), "rb") as file:
            data: Any = json.loads(file.read(_ENGINE_FILE_LIMIT))
        engine = Owner(
            run=str(data.get("run", "")),
            run_dir=run_dir,
            host=str(data.get("host", "")),
            machine=str(data.get("machine", "")),
            boot=str(data.get("boot", "")),
            space=str(data.get("space", "")),
            pid=int(data.get("pid", 0)),
            start=str(data.get("start", "")),
        )
        return engine, data.get("ended") is True
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
