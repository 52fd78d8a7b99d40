"""Which key does what: the registry's defaults under the user's `keys.toml`.

    [keys]                      # or at the top level
    "rollout.stop" = "s"
    "app.palette" = ["colon", "ctrl+p"]

A key is written as Textual names it (`ctrl+p`, `f5`, `question_mark`) or as the character itself (`?`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vf_core.errors import ConfigError
from vf_tui.actions import ACTIONS, BY_ID, SCOPES, Action, in_scope

FORBIDDEN_FOR_DANGER = frozenset(
    {"h", "j", "k", "l", "ctrl+d", "ctrl+k", "enter", "delete", "backspace", "tab", "space", "escape"}
    | {"up", "down", "left", "right", "home", "end", "pageup", "pagedown"}
)
"""Keys that fingers hit by habit: nothing that stops or restarts is ever put on them."""

FIXED = {"ctrl+c": "app.interrupt"}
"""Keys that always keep their meaning, whatever `keys.toml` says: the way out."""

_NAMES = {
    "?": "question_mark", ":": "colon", "/": "slash", "!": "exclamation_mark", "[": "left_square_bracket",
    "]": "right_square_bracket", "{": "left_curly_bracket", "}": "right_curly_bracket", " ": "space",
    ".": "full_stop", ",": "comma", ";": "semicolon", "-": "minus", "+": "plus", "=": "equals_sign",
    "*": "asterisk", "#": "number_sign", "@": "at", "%": "percent_sign", "&": "ampersand", "'": "apostrophe",
    '"': "quotation_mark", "(": "left_parenthesis", ")": "right_parenthesis", "<": "less_than_sign",
    ">": "greater_than_sign", "\\": "backslash", "^": "circumflex_accent", "_": "underscore",
    "`": "grave_accent", "|": "vertical_line", "~": "tilde", "$": "dollar_sign",
}  # fmt: skip
_SHOWN = {name: char for char, name in _NAMES.items() if char != " "} | {
    "escape": "esc", "question_mark": "?", "shift+down": "shift+↓", "shift+up": "shift+↑",
}  # fmt: skip


def key_name(text: str) -> str:
    """The name under which Textual reports the key that a user wrote as `text`."""
    text = text.strip() or text
    return _NAMES.get(text, text)


def shown(key: str) -> str:
    """A key as a user reads it: `?` for question_mark, `esc` for escape."""
    return _SHOWN.get(key, key)


@dataclass(frozen=True, slots=True)
class Keymap:
    """Keys by action id. `remapped`: the ids that `keys.toml` moved."""

    keys: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {action.id: action.keys for action in ACTIONS}
    )
    remapped: frozenset[str] = frozenset()

    def of(self, action: Action | str) -> tuple[str, ...]:
        """The keys of an action."""
        return self.keys[action if isinstance(action, str) else action.id]

    def label(self, action: Action | str) -> str:
        """The keys of an action for a reader: `? F1`; empty when it has none."""
        return " ".join(shown(key) for key in self.of(action))

    def first(self, action: Action | str) -> str:
        """The first key of an action for a reader; empty when it has none."""
        keys = self.of(action)
        return shown(keys[0]) if keys else ""


def clashes(keys: Mapping[str, tuple[str, ...]]) -> list[tuple[str, str, Action, Action]]:
    """(scope, key, one, other) for every key that two actions of one scope share."""
    out = []
    for scope in SCOPES:
        taken: dict[str, Action] = {}
        for action in in_scope(scope):
            for key in keys[action.id]:
                other = taken.setdefault(key, action)
                if other is not action:
                    out.append((scope, key, other, action))
    return out


def load_keymap(path: Path) -> Keymap:
    """The keymap with the changes of the file at `path`; the defaults when there is none.

    Raises `ConfigError` for a file that can't be read, an unknown action, a key that can't be used and two
    actions of one screen on one key (naming both).
    """
    if not path.exists():
        return Keymap()
    from vf_core.config.load import load_toml

    data = load_toml(path)
    table = data.get("keys", data)
    if not isinstance(table, dict):
        raise ConfigError("must be a table of action = key", file=path, key="keys")
    return build(table, path)


def build(table: Mapping[str, Any], file: Path | str = "keys.toml") -> Keymap:
    """The keymap with the changes of `table` (action id to a key, or a list of keys). Raises `ConfigError`."""
    keys = {action.id: action.keys for action in ACTIONS}
    flat = dict(_flatten(table))
    for id, value in flat.items():
        action = BY_ID.get(id)
        if action is None:
            near = difflib.get_close_matches(id, BY_ID, n=1)
            hint = f"did you mean {near[0]}?" if near else "`vf-tui keys` lists them"
            raise ConfigError("no such action", file=file, key=id, hint=hint)
        keys[id] = _keys(action, value, file)
    found = clashes(keys)
    if found:
        scope, key, one, other = found[0]
        raise ConfigError(
            f"the key {shown(key)!r} is both {one.id} ({one.label}) and {other.id} ({other.label}) "
            f"on the {scope} screen",
            file=file,
            key=one.id if one.id in flat else other.id,
            hint="give one of them another key",
        )
    return Keymap(keys, frozenset(flat))


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """`"rollout.stop" = "s"` and `[rollout] stop = "s"` mean the same."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _keys(action: Action, value: Any, file: Path | str) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(v, str) and v for v in values):
        raise ConfigError('must be a key ("x") or a list of keys', file=file, key=action.id)
    out = tuple(dict.fromkeys(key_name(v) for v in values))
    for key in out:
        if FIXED.get(key, action.id) != action.id:
            raise ConfigError(
                f"{shown(key)} always means {BY_ID[FIXED[key]].label}", file=file, key=action.id
            )
        if action.dangerous and key in FORBIDDEN_FOR_DANGER:
            raise ConfigError(
                f"{shown(key)!r} is a key that fingers hit by habit, and {action.label} cannot be undone",
                file=file,
                key=action.id,
                hint="choose another key",
            )
    fixed = tuple(key for key, id in FIXED.items() if id == action.id and key not in out)
    return (*out, *fixed)
