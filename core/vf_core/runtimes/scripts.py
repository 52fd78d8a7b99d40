"""Running a Python program with a PEP 723 header on this host: by this interpreter if it satisfies the header,
else in an environment that uv prepares, once a program.

Programs are kept under names made of their content, in the user's private cache, compiled: a fresh interpreter then
spends nothing on compiling them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import marshal
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from vf_core.config.paths import cache_dir, private_dir
from vf_core.errors import ConfigError, HarnessError
from vf_core.runtimes.output import Capture
from vf_core.runtimes.records import SCRIPTS

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Deaf to PYTHON… variables, the user's site directory and the working directory; text is UTF-8 whatever the locale.
ISOLATED = ("-I", "-X", "utf8")
UV_TIMEOUT = 900.0
_BLOCK = re.compile(r"(?m)^# /// script[ \t]*$\s(?P<body>(?:^#(?:| .*)$\s)+)^# ///[ \t]*$")


@dataclass(frozen=True, slots=True)
class Header:
    """What a program's header asks for: `python`, a version specifier (may be empty), and requirements."""

    python: str = ""
    dependencies: tuple[str, ...] = ()

    def with_more(self, requires: Sequence[str]) -> Header:
        """And these requirements."""
        return Header(self.python, (*self.dependencies, *(r for r in requires if r not in self.dependencies)))


def parse_header(source: str) -> Header:
    """The PEP 723 header of `source`, empty when it has none. Raises `HarnessError` when it cannot be read."""
    found = _BLOCK.findall(source.replace("\r\n", "\n"))
    if not found:
        return Header()
    if len(found) > 1:
        raise HarnessError("the program has more than one `# /// script` header")
    text = "".join(
        line[2:] if line.startswith("# ") else line[1:] for line in found[0].splitlines(keepends=True)
    )
    try:
        data = tomllib.loads(text)
        python, dependencies = data.get("requires-python", ""), data.get("dependencies", [])
        if not isinstance(python, str) or not all(isinstance(d, str) for d in dependencies):
            raise ValueError("requires-python is a text, dependencies a list of texts")
    except (ValueError, TypeError) as e:
        raise HarnessError(f"the program's `# /// script` header cannot be read: {e}") from e
    return Header(python, tuple(dependencies))


def unsatisfied(header: Header) -> list[str]:
    """What this interpreter lacks of a header, as texts; empty when it can run the program."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    missing = []
    try:
        version = ".".join(map(str, sys.version_info[:3]))
        if header.python and not SpecifierSet(header.python).contains(version, prereleases=True):
            missing.append(f"Python {header.python}")
        missing += [text for text in header.dependencies if not _installed(Requirement(text), {""}, 0)]
    except (InvalidRequirement, InvalidSpecifier) as e:
        raise HarnessError(f"the program asks for something that is no requirement: {e}") from e
    return missing


def requirements(header: Header) -> list[Requirement]:
    """The parsed requirements, in order. Raises `HarnessError` naming the one that is none."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return [Requirement(text) for text in header.dependencies]
    except InvalidRequirement as e:
        raise HarnessError(f"the program asks for something that is no requirement: {e}") from e


def _installed(requirement: Requirement, extras: set[str], depth: int) -> bool:
    """Whether a requirement is met here, what its extras ask for included."""
    from importlib.metadata import PackageNotFoundError, distribution

    from packaging.requirements import Requirement

    if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
        return True
    if requirement.url:
        return False  # an exact origin: only an installer can promise that
    try:
        found = distribution(requirement.name)
    except PackageNotFoundError:
        return False
    if not requirement.specifier.contains(found.version, prereleases=True):
        return False
    if not requirement.extras or depth > 4:
        return True
    return all(
        _installed(Requirement(text), set(requirement.extras), depth + 1)
        for text in found.requires or []
        if "extra" in text
    )


# A program and what it requires beside its header.
Key = tuple[str, tuple[str, ...]]
_prepared: dict[Key, list[str]] = {}
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, asyncio.Lock]] = WeakKeyDictionary()


async def prepare(source: str, requires: Sequence[str], fallback: Callable[[], Path]) -> list[str]:
    """The argv prefix that runs `source` on this host. `fallback` gives a private directory where there is no cache.

    Raises `HarnessError` when it cannot be run: a header that asks for more than is here and no uv, or uv's failure.
    """
    key = (source, tuple(requires))
    found = _still_there(key)
    if found is None:
        locks = _locks.setdefault(asyncio.get_running_loop(), {})
        async with locks.setdefault(key, asyncio.Lock()):
            found = _still_there(key)
            if found is None:
                found = _prepared[key] = await _prepare(source, key, fallback)
    return list(found)


def _still_there(key: Key) -> list[str] | None:
    argv = _prepared.get(key)
    return argv if argv is not None and os.path.exists(argv[0]) and os.path.exists(argv[-1]) else None


async def _prepare(source: str, key: Key, fallback: Callable[[], Path]) -> list[str]:
    header = parse_header(source).with_more(key[1])
    missing = await asyncio.to_thread(unsatisfied, header) if sys.executable else ["a Python interpreter"]
    directory = _directory(fallback)
    if missing:
        return await _by_uv(source, header, missing, directory)
    return [sys.executable, *ISOLATED, await asyncio.to_thread(_compiled, source, directory)]


def _directory(fallback: Callable[[], Path]) -> Path:
    try:
        return private_dir(cache_dir() / SCRIPTS)
    except ConfigError:
        return private_dir(fallback() / SCRIPTS)


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()[:32]


def _compiled(source: str, directory: Path) -> str:
    """The program, compiled for this interpreter, beside its source."""
    path = directory / f"{_digest(source)}.py"
    try:
        text = source.encode()
        code = compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as e:
        raise HarnessError(f"the program is not valid Python: line {e.lineno}: {e.msg}") from e
    except ValueError as e:
        raise HarnessError(f"the program is not valid Python: {e}") from e
    _publish(path, text)
    target = path.with_suffix(f".{sys.implementation.cache_tag}.pyc")
    # Flags 1: a hash-based file that is not checked against its source; its name is the check.
    _publish(target, MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code))
    return str(target)


def _publish(path: Path, data: bytes) -> None:
    """Have `data` at `path`, whole at any moment, whoever else does the same."""
    try:
        if path.read_bytes() == data:
            return
    except OSError:
        pass
    try:
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with open(fd, "wb") as f:
                f.write(data)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as e:
        raise HarnessError(f"{path} cannot be written: {e.strerror or e}") from e


async def _by_uv(source: str, header: Header, missing: Sequence[str], directory: Path) -> list[str]:
    uv = shutil.which("uv")
    lacking = ", ".join(missing)
    if uv is None:
        raise HarnessError(
            f"the program needs {lacking}, which this Python ({sysconfig.get_python_version()}) lacks, "
            "and there is no uv",
            hint="install uv (https://docs.astral.sh/uv), or what is missing beside vf-tui",
        )
    script = with_header(source, header)
    path = directory / f"{_digest(script)}-uv.py"
    _publish(path, script.encode())
    await _uv([uv, "sync", "--script", str(path), "--no-config", "-q"], directory, lacking)
    found = await _uv([uv, "python", "find", "--script", str(path), "--no-config"], directory, lacking)
    interpreter = shutil.which(found.strip().rpartition("\n")[2])
    if interpreter is None:
        raise HarnessError(
            f"uv prepared an environment for {lacking}, but names no interpreter in it: {found!r}"
        )
    return [interpreter, *ISOLATED, str(path)]


def with_header(source: str, header: Header) -> str:
    """`source` with its header replaced by `header`."""
    lines = ["# /// script"]
    if header.python:
        lines.append(f"# requires-python = {json.dumps(header.python)}")
    lines.append(f"# dependencies = {json.dumps(list(header.dependencies))}")
    block = "\n".join([*lines, "# ///"])
    source = source.replace("\r\n", "\n")
    if _BLOCK.search(source):
        return _BLOCK.sub(lambda _: block, source, count=1)
    shebang, newline, rest = source.partition("\n") if source.startswith("#!") else ("", "", source)
    return f"{shebang}{newline}{block}\n{rest}"


async def _uv(argv: list[str], directory: Path, lacking: str) -> str:
    """Run uv away from the sandbox, whose own settings of uv are not ours; its output."""
    from vf_core.runtimes import processes

    captures = {stream: Capture(1 << 16) for stream in ("stdout", "stderr")}
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH")}
    try:
        process = processes.start(
            argv,
            env=env,
            cwd=str(directory),
            sink=lambda stream, data: captures[stream].add(data),
        )
    except processes.CannotRunError as e:
        raise HarnessError(f"uv cannot be run: {e}") from e
    try:
        await asyncio.wait({process.finished}, timeout=UV_TIMEOUT)
    finally:
        if process.exit_code is None:
            process.signal_group(9)
        process.close()
    if process.exit_code != 0:
        why = "took too long" if process.exit_code is None else f"exited with {process.exit_code}"
        raise HarnessError(f"uv {why} while preparing {lacking}: {captures['stderr'].text().strip()[-500:]}")
    return captures["stdout"].text()
