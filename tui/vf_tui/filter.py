"""A list's filter: what a user types after `/`, as a predicate over rollouts, or over what another vocabulary reads.

Terms are separated by spaces and must all hold. A term is plain text (found anywhere, whatever the case),
`"quoted text"`, `/a regex/`, or `key:value`; a `!` in front inverts it. `value` may list alternatives
(`status:error,stopped`); numeric keys also take `<`, `<=`, `>`, `>=` (`turns:>10`).
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from vf_core.events.state import RolloutView

HAYSTACK_LIMIT = 4_000

T = TypeVar("T")
Predicate = Callable[[T], bool]


class FilterError(ValueError):
    """The text is no filter; the message says why and what would be."""


@dataclass(frozen=True, slots=True)
class Vocabulary(Generic[T]):
    """What terms may ask of a thing: its text as a whole, and keys that read texts and numbers off it."""

    haystack: Callable[[T], str]
    texts: Mapping[str, Callable[[T], str]]
    numbers: Mapping[str, Callable[[T], float | None]] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Filter(Generic[T]):
    """A parsed filter; an empty one lets everything through."""

    text: str = ""
    terms: tuple[Predicate[T], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __call__(self, thing: T) -> bool:
        return all(term(thing) for term in self.terms)


def parse(text: str) -> Filter[RolloutView]:
    """The filter of rollouts that `text` spells. Raises `FilterError`."""
    return parse_with(text, ROLLOUTS)


def parse_with(text: str, vocabulary: Vocabulary[T]) -> Filter[T]:
    """The filter that `text` spells in a vocabulary. Raises `FilterError`."""
    terms: list[Predicate[T]] = []
    for inverted, kind, body in _tokens(text):
        make = _regex if kind == "/" else _plain if kind == '"' else _word
        term = make(body, vocabulary)
        terms.append(_not(term) if inverted else term)
    return Filter(text.strip(), tuple(terms))


_TOKEN = re.compile(r'\s*(!?)(?:/((?:\\.|[^/\\])*)(/?)(?=\s|$)|"([^"]*)"?|(\S+))')


def _tokens(text: str) -> list[tuple[bool, str, str]]:
    """(inverted, kind, body) of each term; kind is `/` for a regex, `"` for quoted text, empty for a word."""
    out: list[tuple[bool, str, str]] = []
    end = 0
    text = text.rstrip()
    while end < len(text) and (match := _TOKEN.match(text, end)):
        end = match.end()
        bang, regex, _, quoted, word = match.groups()
        if word == "!" or (bang and word is None and not regex and not quoted):
            raise FilterError("`!` needs something to invert: !error, !status:completed")
        if regex is not None:
            out.append((bool(bang), "/", regex))
        elif quoted is not None:
            out.append((bool(bang), '"', quoted))
        else:
            out.append((bool(bang), "", word))
    return [token for token in out if token[2]]


def _not(term: Predicate[T]) -> Predicate[T]:
    return lambda thing: not term(thing)


def _regex(body: str, known: Vocabulary[T]) -> Predicate[T]:
    try:
        pattern = re.compile(body, re.IGNORECASE)
    except re.error as e:
        raise FilterError(f"/{body}/ is not a regular expression: {e}") from e
    return lambda thing: pattern.search(known.haystack(thing)) is not None


def _plain(body: str, known: Vocabulary[T]) -> Predicate[T]:
    needle = body.casefold()
    return lambda thing: needle in known.haystack(thing).casefold()


def _word(body: str, known: Vocabulary[T]) -> Predicate[T]:
    key, colon, value = body.partition(":")
    if not colon or not re.fullmatch(r"[a-z_]+", key) or value.startswith("//"):
        return _plain(body, known)
    if not value:
        raise FilterError(f"{key}: needs a value, as in {key}:{known.examples.get(key, 'text')}")
    if key in known.numbers:
        return _number(key, value, known)
    read = known.texts.get(key)
    if read is None:
        near = difflib.get_close_matches(key, [*known.texts, *known.numbers], n=1)
        hint = f"; did you mean {near[0]}:?" if near else ""
        raise FilterError(f'no key {key!r}{hint} (quote it to search the text: "{body}")')
    values = tuple(part for part in value.casefold().split(",") if part)
    return lambda thing: any(part in read(thing).casefold() for part in values)


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _number(key: str, value: str, known: Vocabulary[T]) -> Predicate[T]:
    match = re.fullmatch(r"(<=|>=|<|>|=|)(-?\d+(?:\.\d+)?)", value)
    if match is None:
        raise FilterError(f"{key}: takes a number, as in {key}:3 or {key}:>3, not {value!r}")
    compare, wanted, read = _COMPARISONS[match[1]], float(match[2]), known.numbers[key]

    def term(thing: T) -> bool:
        got = read(thing)
        return got is not None and compare(got, wanted)

    return term


def haystack(r: RolloutView) -> str:
    """The text of `r` that plain terms and regexes search: what a user can see of it, one fact a line."""
    box, tool = r.sandbox, r.tools[-1] if r.tools else None
    parts = (
        r.id,
        r.name,
        r.status,
        r.phase,
        r.error_type,
        r.error,
        r.stop_condition,
        r.exit_word,
        f"{box.name} {box.id} {box.state.word}" if box else "",
        f"{tool.name} {tool.arguments}" if tool else "",
    )
    return "\n".join(parts)[:HAYSTACK_LIMIT]


_TEXTS: dict[str, Callable[[RolloutView], str]] = {
    "id": lambda r: r.id,
    "name": lambda r: r.name,
    "task": lambda r: f"{r.task} {r.name}",
    "status": lambda r: r.status,
    "phase": lambda r: r.phase,
    "error": lambda r: f"{r.error_type} {r.error}",
    "stop": lambda r: r.stop_condition,
    "exit": lambda r: r.exit_word,
    "box": lambda r: r.sandbox.state.word if r.sandbox else "none",
    "provider": lambda r: r.sandbox.kind if r.sandbox else "",
    "tool": lambda r: " ".join(tool.name for tool in r.tools),
    "server": lambda r: " ".join([*r.served, *(tool.server for tool in r.tools)]),
}

_NUMBERS: dict[str, Callable[[RolloutView], float | None]] = {
    "turns": lambda r: float(r.turns),
    "tokens": lambda r: float(r.prompt_tokens + r.completion_tokens),
    "attempt": lambda r: float(r.attempt),
    "sample": lambda r: float(r.sample),
    "reward": lambda r: r.reward,
}

_EXAMPLES = {"status": "error", "box": "GONE", "error": "ProviderError", "exit": "137", "turns": ">10"}

KEYS = (*_TEXTS, *_NUMBERS)
ROLLOUTS = Vocabulary(haystack, _TEXTS, _NUMBERS, _EXAMPLES)


def of_lines(text: str) -> tuple[Filter[str], re.Pattern[str] | None]:
    """The filter of a text's lines, which have no keys, and what it looks for in those that it lets through (None:
    nothing). Raises `FilterError`."""
    found: list[str] = []
    terms: list[Predicate[str]] = []
    for inverted, kind, body in _tokens(text):
        try:
            pattern = re.compile(body if kind == "/" else re.escape(body), re.IGNORECASE)
        except re.error as e:
            raise FilterError(f"/{body}/ is not a regular expression: {e}") from e
        terms.append(_not(_finds(pattern)) if inverted else _finds(pattern))
        if not inverted:
            found.append(f"(?:{pattern.pattern})")
    light = re.compile("|".join(found), re.IGNORECASE) if found else None
    return Filter(text.strip(), tuple(terms)), light


def _finds(pattern: re.Pattern[str]) -> Predicate[str]:
    return lambda line: pattern.search(line) is not None


def words(text: str) -> list[tuple[bool, str]]:
    """(inverted, word in lower case) of each term of a filter that knows no keys. Raises `FilterError`."""
    return [(inverted, body.casefold()) for inverted, _, body in _tokens(text)]
