"""One self-contained script from an entry file and the parts that it imports."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

_PACKAGE = "vf_core.harnesses.program"
_HERE = Path(__file__).parent

# httpx 0.x and mcp 2 speak different HTTP libraries: a new major of either is an incompatible one.
HEADER = """\
# /// script
# requires-python = ">=3.11"
# dependencies = ["httpx>=0.28,<1", "tenacity>=9,<10", "mcp>=2,<3"]
# ///
"""


@cache
def program_source(entry: Path) -> str:
    """The program whose main file is `entry`, as the text of one script with its PEP 723 header.

    Raises ValueError when two parts define the same name at module level: they share one namespace.
    """
    text = entry.read_text(encoding="utf-8")
    parts = [_HERE / f"{name}.py" for name in _needed(text, [])]
    names: dict[str, str] = {}
    bodies = [HEADER, "from __future__ import annotations\n\nimport gc\n\ngc.disable()\n"]
    for path in (*parts, entry):
        source = text if path is entry else path.read_text(encoding="utf-8")
        for name in _defined(source):
            if names.setdefault(name, path.name) != path.name:
                raise ValueError(f"{name!r} is defined in {names[name]} and in {path.name}")
        bodies.append(_without_own_imports(source))
    return "\n".join(bodies)


def _needed(source: str, found: list[str]) -> list[str]:
    """The parts that `source` imports, and theirs, each after those that it needs."""
    for node in _own_imports(source):
        name = (node.module or "").removeprefix(_PACKAGE + ".")
        if name not in found:
            _needed((_HERE / f"{name}.py").read_text(encoding="utf-8"), found)
            if name not in found:
                found.append(name)
    return found


def _own_imports(source: str) -> list[ast.ImportFrom]:
    return [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE + ".")
    ]


def _defined(source: str) -> list[str]:
    """Names that the module body defines by itself (imports aside)."""
    out: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            out.append(node.name)
        elif isinstance(node, ast.Assign):
            out += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            out.append(node.target.id)
    return out


def _without_own_imports(source: str) -> str:
    lines = source.splitlines()
    drop = {
        number
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom)
        and (node.module == "__future__" or (node.module or "").startswith(_PACKAGE + "."))
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return "\n".join(line for number, line in enumerate(lines, 1) if number not in drop) + "\n"
