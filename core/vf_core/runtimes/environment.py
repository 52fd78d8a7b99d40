"""What of the host's environment a local sandbox may see, and what marks its processes as ours.

Not inherited: what looks like a secret (by its name or by its value), what a config names as one (`withhold`), the
host's settings of model providers, vf-tui's own virtual environment and other Python settings, and handles on the
user's terminal.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache

from vf_core.config.fit import LEFT_OUT
from vf_core.config.secrets import holds_credential, names_secret
from vf_core.runtimes.identity import LINUX, engine

SANDBOX_VAR = "VF_TUI_SANDBOX"
RUN_VAR = "VF_TUI_RUN"
ENGINE_VAR = "VF_TUI_ENGINE"

_SECRET = re.compile(
    r"API.?KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|AUTHORIZATION"
    r"|(?:^|_)KEY(?:$|_)|ACCESS.?KEY|PRIVATE.?KEY|SESSION|TEAM.?ID",
    re.IGNORECASE,
)
# A program that finds these calls a model provider of the host's, or thinks that it was asked to.
_PROVIDER = re.compile(
    r"^(?:OPENAI|AZURE_OPENAI|ANTHROPIC|LITELLM|POOLSIDE)_|_(?:BASE_URL|API_BASE)$", re.IGNORECASE
)
# A login in a web address may also be a bare token; elsewhere (ssh://git@host) a user alone is harmless.
_LOGIN = re.compile(r"https?://[^/?#\s@]+@|://[^/?#\s@]*:[^/?#\s@]+@", re.IGNORECASE)
_LEFT_OUT = frozenset(
    (
        *("OLDPWD", "_", "SHLVL", "PS1", "COLUMNS", "LINES"),
        *("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONEXECUTABLE", "PYTHONSAFEPATH"),
        *("__PYVENV_LAUNCHER__", "VIRTUAL_ENV_PROMPT", "UV", "UV_RUN_RECURSION_DEPTH"),
        *("TMUX", "TMUX_PANE", "STY", "WINDOW", "SSH_TTY", "GPG_TTY", "EDITOR", "VISUAL", "GIT_EDITOR"),
    )
)


_withheld: frozenset[str] = frozenset()


def withhold(names: Iterable[str]) -> None:
    """No sandbox of this process inherits the variables `names` from now on: a config says that they hold secrets.

    To hand one over all the same, name it in the harness's `forward_env` or `env`.
    """
    global _withheld  # noqa: PLW0603 - the environment is the process's, too
    added = frozenset(names) - _withheld
    if added:
        _withheld |= added


def inherited(name: str, value: str) -> bool:
    """Whether a host variable may be seen in a local sandbox."""
    return name not in _withheld and _looks_harmless(name, value)


@lru_cache(maxsize=4096)
def _looks_harmless(name: str, value: str) -> bool:
    if name in _LEFT_OUT or name.startswith("VF_TUI_"):
        return False
    if _SECRET.search(name) or _PROVIDER.search(name) or names_secret((name,)):
        return False
    return not (_LOGIN.search(value) or _is_credential(value))


def _is_credential(value: str) -> bool:
    # `holds_credential` counts any login in an address; the harmless ones are told apart above.
    return holds_credential(re.sub(r"://[^/?#\s:@]+@", "://", value))


_last: tuple[dict[bytes, bytes], frozenset[str], dict[str, str]] = ({}, frozenset(), {})


def host_environment() -> dict[str, str]:
    """The part of this process's environment that a local sandbox starts from."""
    global _last  # noqa: PLW0603 - the same for thousands of sandboxes
    now = dict(os.environb)
    if (now, _withheld) != _last[:2]:
        _last = (now, _withheld, _filtered(os.environ))
    return dict(_last[2])


def _filtered(host: Mapping[str, str]) -> dict[str, str]:
    out = {name: value for name, value in host.items() if inherited(name, value)}
    own = _own_environments()
    if out.get("VIRTUAL_ENV") and _real(out["VIRTUAL_ENV"]) in own:
        del out["VIRTUAL_ENV"]
    if own:
        out["PATH"] = _without(out.get("PATH", os.defpath), own)
    # No terminal is there, whatever the host's variable says: editors and pagers refuse instead of waiting.
    out["TERM"] = "dumb"
    return out


def _own_environments() -> frozenset[str]:
    """The virtual environment that this program runs from, if it does."""
    if sys.prefix == sys.base_prefix:
        return frozenset()
    return frozenset({_real(sys.prefix)})


def _without(path: str, environments: Iterable[str]) -> str:
    bins = {_real(os.path.join(env, "bin")) for env in environments}
    kept = [part for part in path.split(os.pathsep) if part and _real(part) not in bins]
    return os.pathsep.join(kept) or os.defpath


@lru_cache(maxsize=512)
def _real(path: str) -> str:
    return os.path.realpath(path)


def markers(sandbox: str, run: str) -> dict[str, str]:
    """Variables that tell a sandbox's processes from all others: the sandbox, its run, and this engine.

    An engine that itself runs in a sandbox adds to that sandbox's marks, so that both find the process.
    """
    return {
        SANDBOX_VAR: _chain(SANDBOX_VAR, sandbox),
        ENGINE_VAR: _chain(ENGINE_VAR, engine().token),
        RUN_VAR: run,
    }


def _chain(variable: str, value: str) -> str:
    outer = os.environ.get(variable)
    return f"{outer}:{value}" if outer else value


def marks_in(environment: bytes, variable: str) -> tuple[str, ...]:
    """The marks under `variable` in a process's environment block (`NAME=value`, each ended by a zero byte)."""
    name = variable.encode() + b"="
    if environment.startswith(name):
        at = len(name)
    else:
        at = environment.find(b"\0" + name)
        if at < 0:
            return ()
        at += len(name) + 1
    end = environment.find(b"\0", at)
    value = environment[at : end if end >= 0 else len(environment)]
    return tuple(value.decode(errors="replace").split(":"))


def hide_own_secrets() -> int:
    """Blank the secrets in this process's initial environment block; returns how many.

    A local sandbox's programs may read the block of their parent, this process, under /proc. The variables
    themselves stay set, here and in what this process starts. Linux only.
    """
    if not LINUX:
        return 0
    try:
        with open("/proc/self/stat", "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        with open("/proc/self/environ", "rb") as f:
            block = f.read()
    except (OSError, ValueError, IndexError):
        return 0
    if not start or end - start != len(block) or ctypes.string_at(start, len(block)) != block:
        return 0
    hidden = 0
    offset = 0
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and value and not _open_to_all(os.fsdecode(name), os.fsdecode(value)):
            current = os.environb.get(name)
            if current is not None:
                os.environb[name] = current  # the C library now holds a copy of its own elsewhere
            ctypes.memset(start + offset + len(name) + 1, ord("x"), len(value))
            hidden += 1
        offset += len(entry) + 1
    return hidden


def _open_to_all(name: str, value: str) -> bool:
    ours = name.startswith("VF_TUI_") and not name.startswith(LEFT_OUT)
    return name in _LEFT_OUT or ours or inherited(name, value)
