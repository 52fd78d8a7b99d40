"""Which themes there are, without reading their colours."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from vf_core.config.load import load_toml
from vf_core.config.paths import config_dir
from vf_core.errors import ConfigError

FALLBACK = "dark"


def shipped_dir() -> Path:
    """Where the shipped themes are: beside this module, or at the root of the source tree."""
    here = Path(__file__).resolve().parent
    packaged = here / "themes"
    return packaged if packaged.is_dir() else here.parent.parent / "themes"


def user_dir() -> Path:
    """Where the user's themes are; the directory need not exist."""
    return config_dir() / "themes"


def theme_names() -> list[str]:
    """The names of all theme files that can be read."""
    names = {}
    for directory in (shipped_dir(), user_dir()):
        for file in sorted(directory.glob("*.toml")):
            try:
                names[str(load_toml(file).get("name", file.stem))] = file
            except ConfigError:
                continue
    return list(names)


def theme_problem(wanted: str, names: Collection[str]) -> str:
    """Why there is no theme of this name, and which was probably meant; "" when there is one."""
    if wanted in names:
        return ""
    near = get_close_matches(wanted, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
    return f"no theme {wanted!r} ({hint})"
