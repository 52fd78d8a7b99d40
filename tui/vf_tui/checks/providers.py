"""Where sandboxes can be made: an engine that answers, credentials that are there. No secret is read out."""

from __future__ import annotations

import asyncio
import json
import os
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vf_core.errors import VfError
from vf_tui.checks.base import Finding, Status, shown_error
from vf_tui.checks.machine import install_line

if TYPE_CHECKING:
    from vf_core.runtimes.docker.endpoint import Endpoint

SECTION = "providers"
ENGINE_SECONDS = 10.0


def local() -> Finding:
    """Sandboxes that are processes here need nothing."""
    return Finding(SECTION, "subprocess", "ok", "programs run as processes of this machine, not isolated")


def docker(environ: Mapping[str, str] | None = None, *, sdk: bool = True) -> Finding:
    """The engine, asked; `sdk`: the extra can be imported."""
    environ = os.environ if environ is None else environ
    from vf_core.runtimes.docker.endpoint import resolve

    # What was set up by name, or is there and refuses, is broken; an engine that nobody installed is not.
    given = bool(environ.get("DOCKER_HOST") or environ.get("DOCKER_CONTEXT"))
    try:
        endpoint = resolve(environ)
    except VfError as e:
        text, hint = shown_error(e)
        status: Status = "broken" if given or "permission" in str(e).lower() else "missing"
        return Finding(SECTION, "docker", status, text, hint, code=5)
    where = endpoint.account + (f" ({endpoint.source})" if endpoint.source else "")
    if not sdk:
        return Finding(
            SECTION, "docker", "missing", f"{where}, but the extra is not there", install_line("docker")
        )
    return _engine(endpoint, where)


def _engine(endpoint: Endpoint, where: str) -> Finding:
    from vf_core.runtimes.docker.client import Engine
    from vf_tui.background import run_apart

    async def ask() -> str:
        async with asyncio.timeout(ENGINE_SECONDS):
            return await Engine(endpoint).version()

    began = time.monotonic()
    try:
        said = run_apart(ask)
    except TimeoutError:
        text = f"{where}: no answer in {ENGINE_SECONDS:.0f} s"
        return Finding(SECTION, "docker", "broken", text, "restart it, or set DOCKER_HOST to another", code=5)
    except VfError as e:
        text, hint = shown_error(e)
        return Finding(SECTION, "docker", "broken", text, hint, code=5)
    text = f"{said} at {where}, answered in {time.monotonic() - began:.1f} s"
    return Finding(SECTION, "docker", "ok", text)


def prime(environ: Mapping[str, str] | None = None, *, sdk: bool = True) -> Finding:
    """Where an API key is; whether it is a good one is known by its first use."""
    environ = os.environ if environ is None else environ
    file = Path.home() / ".prime" / "config.json"
    found = "$PRIME_API_KEY" if environ.get("PRIME_API_KEY") else ""
    problem = ""
    if not found:
        data, problem = _json(file)
        found = str(file) if data.get("api_key") else ""
    return _credentials("prime", found, problem, "set PRIME_API_KEY, or run `prime login`", sdk=sdk)


def modal(environ: Mapping[str, str] | None = None, *, sdk: bool = True) -> Finding:
    """Where a token is; both halves are needed."""
    environ = os.environ if environ is None else environ
    todo = "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`"
    halves = [name for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET") if environ.get(name)]
    if len(halves) == 2:
        return _credentials("modal", "$MODAL_TOKEN_ID and $MODAL_TOKEN_SECRET", "", todo, sdk=sdk)
    file = Path(environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")
    profiles, problem = _toml(file)
    found = ""
    wanted = environ.get("MODAL_PROFILE", "")
    for name, table in profiles.items():
        whole = isinstance(table, dict) and table.get("token_id") and table.get("token_secret")
        active = name == wanted if wanted else (len(profiles) == 1 or bool(table.get("active")))
        if whole and active:
            found = f"profile {name} of {file}"
    if not found and halves:
        problem = f"only {halves[0]} is set"
    return _credentials("modal", found, problem, todo, sdk=sdk)


def _credentials(kind: str, found: str, problem: str, todo: str, *, sdk: bool) -> Finding:
    if problem:
        return Finding(SECTION, kind, "broken", problem, todo)
    if not found:
        return Finding(SECTION, kind, "missing", "no credentials were found", todo)
    if not sdk:
        return Finding(
            SECTION, kind, "warn", f"credentials: {found}, but the extra is not there", install_line(kind)
        )
    return Finding(SECTION, kind, "ok", f"credentials: {found} (not tried)")


def _json(file: Path) -> tuple[dict[str, Any], str]:
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError) as e:
        return {}, f"{file} can't be read: {_reason(e)}"
    return (data, "") if isinstance(data, dict) else ({}, f"{file} holds no table")


def _toml(file: Path) -> tuple[dict[str, Any], str]:
    if str(file) == os.devnull:
        return {}, ""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")), ""
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError) as e:
        return {}, f"{file} can't be read: {_reason(e)}"


def _reason(error: Exception) -> str:
    # What a parser quotes might be a secret: only where it is wrong is told.
    return error.strerror or "" if isinstance(error, OSError) else f"not well-formed ({type(error).__name__})"


def model_key(environ: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """The model's API key, where a config does not name another."""
    environ = os.environ if environ is None else environ
    if environ.get("OPENAI_API_KEY"):
        yield Finding("model", "OPENAI_API_KEY", "ok", "set")
    else:
        todo = "set it, or name another variable as client.api_key_var; `vf-tui demo` needs none"
        yield Finding("model", "OPENAI_API_KEY", "missing", "not set", todo)
