"""A new package with plugins: what `vf-tui init` writes. Its tests pass and its eval runs as they are."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from vf_core.errors import ConfigError
from vf_core.plugins import Kind, builtins, kinds

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_LIMIT = 60
_HERE = Path(__file__).parent


def make_package(name: str, wanted: Sequence[Kind], parent: Path) -> Path:
    """Write the package `name` with plugins of the `wanted` kinds into `parent / name`; that directory.

    It is there whole or not at all. Raises `ConfigError` for a name that can't be one, or that is taken.
    """
    modules = module_names(name, wanted)
    for module in modules.values():
        _check(name, module)
    target = parent / name
    if os.path.lexists(target):
        raise ConfigError(f"{target} is there already", hint="choose another name or --dir")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
        try:
            for path, text in files(name, modules).items():
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_text(text, encoding="utf-8")
            made.chmod(0o777 & ~_umask())
            made.rename(target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as e:
        raise ConfigError(f"{target} can't be written: {e.strerror or e}") from e
    return target


def module_names(name: str, wanted: Sequence[Kind]) -> dict[Kind, str]:
    """The module of each kind: the package's name, with the kind at its end where there are several."""
    base = name.replace("-", "_")
    several = len(set(wanted)) > 1
    return {kind: f"{base}_{kind}" if several else base for kind in kinds() if kind in wanted}


def files(name: str, modules: Mapping[Kind, str]) -> dict[str, str]:
    """What is in the package: path to text."""
    *others, last = (f"a {kind}" for kind in modules)
    what = f"{', '.join(others)} and {last}" if others else last
    told = {
        "name": name,
        "what": what[0].upper() + what[1:],
        "entries": "\n".join(f'{module} = "{module}"' for module in modules.values()),
        "packages": ", ".join(f'"{module}"' for module in modules.values()),
        "ids": " ".join(modules.values()),
        "files": "\n".join(f"| `{module}/` | the {kind} |" for kind, module in modules.items()),
    }
    out = {
        "pyproject.toml": _fill("pyproject", told),
        "README.md": _fill("readme", told),
        ".gitignore": "__pycache__/\n.pytest_cache/\n*.egg-info/\ndist/\noutputs/\n",
        "eval.toml": _eval(modules),
        "scenario.toml": _scenario(modules),
        f"tests/test_{name.replace('-', '_')}.py": _tests(modules),
    }
    for kind, module in modules.items():
        own = {"module": module, "cls": "".join(part.capitalize() for part in module.split("_"))}
        out[f"{module}/__init__.py"] = _fill(kind, own)
        if kind == "harness":
            out[f"{module}/program.py"] = _fill("program", own)
    if "taskset" not in modules:
        rows = ((n, n + n) for n in (1, 2, 3))
        line = '{{"prompt": "What is {0} + {0}? End with the number.", "answer": "{1}"}}\n'
        out["tasks.jsonl"] = "".join(line.format(*row) for row in rows)
    return out


def _check(name: str, module: str) -> None:
    """Refuse a name that no distribution or module may have, or whose id means something else already."""
    if not _NAME.fullmatch(name) or len(name) > _LIMIT:
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LIMIT]
        raise ConfigError(
            f"{name!r} is no name for a package: lower-case letters, digits and dashes, a letter first",
            hint=f"such as {near}" if _NAME.fullmatch(near) else "such as my-tasks",
        )
    if keyword.iskeyword(module) or keyword.issoftkeyword(module) or module in sys.stdlib_module_names:
        raise ConfigError(f"{name!r} is a name of Python's own", hint=f"such as my-{name}")
    for kind in kinds():
        if module in builtins(kind):
            raise ConfigError(
                f"{name!r} is a {kind} that comes with vf-tui: its id would mean that",
                hint=f"such as my-{name}",
            )
    if module in ("vf_core", "vf_tui", "verifiers", "tests") or _importable(module):
        raise ConfigError(f"there is a module {module!r} here already", hint=f"such as my-{name}")


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return True


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _fill(template: str, values: Mapping[str, str]) -> str:
    return Template((_HERE / f"{template}.txt").read_text(encoding="utf-8")).substitute(values)


def _tests(modules: Mapping[Kind, str]) -> str:
    needs_pytest = "taskset" in modules or "judge" in modules
    names = "options, run_eval" if "taskset" in modules else "run_eval"
    imports = ("\nimport pytest\n" if needs_pytest else "") + f"\nfrom vf_core.testing import {names}\n"
    parts = [_fill(f"test_{kind}", {"module": module}) for kind, module in modules.items()]
    return _fill("test_head", {"imports": imports}) + "".join(parts)


def _eval(modules: Mapping[Kind, str]) -> str:
    lines = ['model = "gpt-5-mini"', "num_tasks = 3", "num_rollouts = 1", "", "[env.taskset]"]
    if "taskset" in modules:
        lines += [f'id = "{modules["taskset"]}"', "count = 3"]
    else:
        lines += ['id = "jsonl"', 'path = "tasks.jsonl"', 'match = "contains"']
    if "judge" in modules:
        lines += ["", "[[env.taskset.task.judges]]", f'id = "{modules["judge"]}"', 'model = "gpt-5-mini"']
        lines += ["weight = 0.5", "best = 10"]
    lines += ["", "[env.agent.harness]"]
    lines += [f'id = "{modules["harness"]}"', "tries = 2"] if "harness" in modules else ['id = "null"']
    return "\n".join(lines) + "\n"


def _scenario(modules: Mapping[Kind, str]) -> str:
    rules = [("judge", "How polite", "8")] if "judge" in modules else []
    rules += [("one", r"What is 1 \+ 1", "That is 2"), ("two", r"What is 2 \+ 2", "That is 4")]
    text = "# What the scripted model says: the first rule whose pattern is in the first message counts.\n"
    text += 'model = "scripted"\n'
    for name, pattern, said in rules:
        text += f'\n[[rule]]\nname = "{name}"\ntask = \'{pattern}\'\n[[rule.step]]\ntext = "{said}"\nrepeat = true\n'
    text += '\n[[rule]]\nname = "anything else"\n[[rule.step]]\n'
    return text + 'text = "I am a scripted model and know two sums only."\nrepeat = true\n'
