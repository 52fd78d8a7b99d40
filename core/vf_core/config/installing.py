"""Packages of the environment that vf-tui itself runs in: how one is added, and which are worked on in place."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
import tomllib
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

RECEIPT = "uv-receipt.toml"


def install_command(package: str) -> str:
    """How `package` is added here: with pip or uv, or to an isolated tool, whose other packages stay."""
    prefix = Path(sys.prefix)
    if (prefix / RECEIPT).exists():
        return f"{_uv_tool(prefix / RECEIPT)} --with {package} (or --with-editable DIR)"
    if prefix.parent.name == "venvs" and "pipx" in prefix.parts:
        return f"pipx inject vf-tui {package}"
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {sys.executable} {package}"
    return f"{sys.executable} -m pip install {package}"


def _uv_tool(receipt: Path) -> str:
    """The command by which the tool was installed: another one replaces what it had with it."""
    try:
        wanted = tomllib.loads(receipt.read_text(encoding="utf-8"))["tool"]["requirements"]
        own = [one for one in wanted if one["name"] == "vf-tui"]
        words = ["uv", "tool", "install", *(_source(one) for one in own[:1] or [{"name": "vf-tui"}])]
        for one in wanted:
            if one not in own:
                words += ["--with-editable" if "editable" in one else "--with", _source(one)]
        return shlex.join(words)
    except (OSError, ValueError, LookupError, TypeError):
        return "uv tool install vf-tui"


def _source(requirement: dict[str, Any]) -> str:
    """A requirement of a receipt, as it is written on a command line."""
    extras = f"[{','.join(requirement['extras'])}]" if requirement.get("extras") else ""
    for where in ("editable", "directory", "path", "url"):
        if where in requirement:
            return f"{requirement[where]}{extras}"
    if "git" in requirement:
        return f"{requirement['name']}{extras} @ git+{requirement['git']}"
    return f"{requirement['name']}{extras}{requirement.get('specifier', '')}"


def editable_root(distribution: Distribution) -> Path | None:
    """The project's directory, where the distribution is an editable install."""
    try:
        told = json.loads(distribution.read_text("direct_url.json") or "{}")
        editable, url = told.get("dir_info", {}).get("editable"), urlsplit(told.get("url", ""))
    except (ValueError, AttributeError):
        return None
    return Path(unquote(url.path)) if editable and url.scheme == "file" else None
