"""The labels that tell our sandboxes at a provider, and whose they are.

Runtimes have short keys (`run`, `rollout`, `attempt`, `host`, `pid`, `started`, `boot`); at the provider each stands
under `vf-tui.`, beside the bare mark `vf-tui`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MARK = "vf-tui"
PREFIX = f"{MARK}."


def encode(labels: Mapping[str, str]) -> dict[str, str]:
    """For providers whose labels are pairs; the mark's value is `1`."""
    return {MARK: "1", **{f"{PREFIX}{key}": value for key, value in labels.items()}}


def decode(labels: Mapping[str, str]) -> dict[str, str]:
    """Ours among a provider's pairs, by their short keys."""
    return {key.removeprefix(PREFIX): value for key, value in labels.items() if key.startswith(PREFIX)}


def encode_list(labels: Mapping[str, str]) -> list[str]:
    """For providers whose labels are single texts: the mark, then `vf-tui.key=value`."""
    return [MARK, *(f"{PREFIX}{key}={value}" for key, value in labels.items())]


def decode_list(labels: Iterable[str]) -> dict[str, str]:
    """Ours among a provider's texts, by their short keys."""
    pairs = (text.removeprefix(PREFIX).partition("=") for text in labels if text.startswith(PREFIX))
    return {key: value for key, _, value in pairs}
