"""Python, optional SDKs, tools, directories, disk, and the app's own files."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from vf_core import __version__
from vf_core.config.paths import cache_dir, config_dir, find_runtime_dir, state_dir
from vf_core.errors import VfError
from vf_tui.checks.base import Finding, shown_error

EXTRAS = {
    "docker": ("aiodocker", "aiodocker"),
    "prime": ("prime-sandboxes", "prime_sandboxes"),
    "modal": ("modal", "modal"),
    "tunnel": ("prime-tunnel", "prime_tunnel"),
}
"""Extra: the distribution that it installs, and the module that is imported."""

IMPORT_SECONDS = 30.0
LOW_DISK = 1 << 30
FEW_FILES = 1024


def install_line(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'vf-tui[{extra}]'"


def python() -> Iterator[Finding]:
    """The interpreter and the limits of the process."""
    version = platform.python_version()
    where = f"{version} at {sys.executable}"
    yield Finding("python", "python", "ok", where)
    yield Finding("python", "vf-tui", "ok", __version__)
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError):
        return
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        todo = f"a run of 128 rollouts needs more: ulimit -n {4 * FEW_FILES}"
        yield Finding("python", "open files", "warn", f"at most {soft}", todo)
    else:
        yield Finding("python", "open files", "ok", "no limit" if soft < 0 else f"at most {soft}")


def extras() -> list[Finding]:
    """Each optional SDK: present, missing, or broken when it is imported."""
    with ThreadPoolExecutor(len(EXTRAS)) as pool:
        return list(pool.map(extra, EXTRAS))


def extra(name: str) -> Finding:
    """One optional SDK, imported in a process of its own: it may print, hang or end it."""
    distribution, module = EXTRAS[name]
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        version = ""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", f"import {module}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=IMPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding(
            "extras",
            name,
            "broken",
            f"{module} does not import in {IMPORT_SECONDS:.0f} s",
            install_line(name),
        )
    if done.returncode == 0:
        return Finding("extras", name, "ok", f"{distribution} {version}".strip())
    said = done.stderr.decode(errors="replace").strip().splitlines()
    last = said[-1] if said else f"it ended python with {done.returncode}"
    if not version and f"No module named '{module}'" in last:
        return Finding("extras", name, "missing", f"{distribution} is not installed", install_line(name))
    todo = f"install it anew: {install_line(name)}"
    return Finding("extras", name, "broken", f"{distribution} {version} does not import: {last}", todo)


def tools() -> Iterator[Finding]:
    """Programs that are used where they are."""
    wanted = {
        "uv": (
            ["uv", "--version"],
            "harness programs then need their packages in the sandbox's python; see docs.astral.sh/uv",
        ),
        "tmux": (
            ["tmux", "-V"],
            "only to keep a screen open when a connection breaks; runs go on without it",
        ),
    }
    for name, (argv, todo) in wanted.items():
        if shutil.which(name) is None:
            yield Finding("tools", name, "missing", "not found in PATH", todo)
            continue
        yield Finding("tools", name, "ok", _version(argv) or "found")


def _version(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip().partition("\n")[0]


def places() -> Iterator[Finding]:
    """Directories that are written to, and the room that they have."""
    named = {"config": config_dir(), "state": state_dir(), "cache": cache_dir()}
    for name, path in named.items():
        yield _writable(name, path)
    try:
        found = find_runtime_dir()
    except VfError as e:
        text, hint = shown_error(e)
        yield Finding("places", "sockets", "broken", text, hint)
    else:
        # A place that was refused is passed over with its reason; the one in use is good.
        yield Finding("places", "sockets", "warn" if found.notice else "ok", found.notice or str(found.path))
    yield from _disk({"state": state_dir(), "here": Path.cwd(), "temporary": Path(_tmp())})


def _tmp() -> str:
    import tempfile

    return tempfile.gettempdir()


def _writable(name: str, path: Path) -> Finding:
    at = path
    while not at.exists() and at != at.parent:
        at = at.parent
    if not at.is_dir():
        return Finding("places", name, "broken", f"{at} is not a directory", "move it away")
    if not os.access(at, os.W_OK | os.X_OK):
        todo = f"make it writable, or set XDG_{name.upper()}_HOME"
        return Finding("places", name, "broken", f"{at} can't be written to", todo)
    return Finding("places", name, "ok", str(path) if at == path else f"{path} (made when needed)")


def _disk(paths: dict[str, Path]) -> Iterator[Finding]:
    seen: set[int] = set()
    for name, path in paths.items():
        at = path
        while not at.exists() and at != at.parent:
            at = at.parent
        try:
            device, usage = at.stat().st_dev, shutil.disk_usage(at)
        except OSError:
            continue
        if device in seen:
            continue
        seen.add(device)
        text = f"{usage.free / (1 << 30):.1f} GB free at {at}"
        if usage.free < LOW_DISK:
            yield Finding("places", f"disk ({name})", "warn", text, "make room: traces and logs go there")
        else:
            yield Finding("places", f"disk ({name})", "ok", text)


def own_files() -> Iterator[Finding]:
    """The user's settings, keys and themes."""
    from vf_core.config.settings import load_settings, settings_file
    from vf_tui.keymap import load_keymap
    from vf_tui.theme import load_themes
    from vf_tui.theme_files import theme_problem

    theme = ""
    for name, file, read in (
        ("settings", settings_file(), load_settings),
        ("keys", config_dir() / "keys.toml", lambda: load_keymap(config_dir() / "keys.toml")),
    ):
        try:
            got = read()
        except VfError as e:
            yield Finding("app", name, "broken", str(e), f"correct {file}")
            continue
        theme = getattr(got, "theme", theme)
        yield Finding("app", name, "ok", str(file) if file.exists() else "the defaults")
    themes = load_themes()
    problem = theme_problem(theme, themes.files) if theme else ""
    for refused in themes.problems:
        yield Finding("app", "theme", "broken", str(refused), "correct the file")
    if problem:
        yield Finding("app", "theme", "broken", problem, "`vf-tui themes` lists them")
    elif theme:
        yield Finding("app", "theme", "ok", theme)


def ledger() -> Iterator[Finding]:
    """The ledger of sandboxes, and what dead runs left."""
    from vf_tui.inventory_source import InventorySource, left_text

    began = time.monotonic()
    try:
        left = left_text(InventorySource().leftover_kinds())
    except VfError as e:
        text, hint = shown_error(e)
        yield Finding("sandboxes", "ledger", "broken", text, hint)
        return
    yield Finding("sandboxes", "ledger", "ok", f"read in {time.monotonic() - began:.1f} s")
    if left:
        yield Finding("sandboxes", "leftovers", "warn", left, "vf-tui cleanup")
    else:
        yield Finding("sandboxes", "leftovers", "ok", "none of dead runs, as far as the ledger knows")
