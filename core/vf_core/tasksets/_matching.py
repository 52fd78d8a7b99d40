"""The match rules of the `jsonl` taskset: what a reply, or a command in the sandbox, is worth."""

from __future__ import annotations

import json
import math
import re
import secrets
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from decimal import Decimal, DecimalException

from vf_core.errors import TaskError
from vf_core.runtimes.base import Runtime
from vf_core.tasks.calls import in_thread

ENV_LIMIT = 100_000
"""Bytes of one variable: the kernel takes 128 KiB for one."""
PATTERN_SECONDS = 10.0
OUTPUT_TAIL = 500

_NUMBER = re.compile(
    r"(?:(?<![\w.])[-+\u2212])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
    r"|(?:(?<![\w.])[-+\u2212])?\.\d+(?:[eE][-+]?\d+)?"
)
# A pattern may take for ever on a reply made for it, and holds the interpreter all the while: it gets its own.
_SEARCH = """
import json, re, sys, warnings
warnings.simplefilter("ignore")
patterns, text, flags = json.load(sys.stdin)
print(int(any(re.search(pattern, text, flags) for pattern in patterns)))
"""
# The paths become absolute in the sandbox: a command may change its directory.
_RUN = (
    'VF_ANSWER_FILE="$PWD/$VF_ANSWER_FILE" VF_REPLY_FILE="$PWD/$VF_REPLY_FILE"; '
    'export VF_ANSWER_FILE VF_REPLY_FILE; exec "$@"'
)


async def match_reply(
    rule: str, answers: Sequence[str], reply: str, *, ignore_case: bool = False, tolerance: float = 1e-6
) -> float:
    """1.0 when `reply` matches one of `answers`, else 0.0. Raises TaskError when that can't be decided."""
    if rule == "regex":
        return await _search(answers, reply, ignore_case)
    if rule == "numeric":
        return float(_same_number(answers, reply, tolerance))
    if ignore_case:
        reply, answers = reply.casefold(), [answer.casefold() for answer in answers]
    if rule == "contains":
        return float(any(answer in reply for answer in answers))
    return float(reply.strip() in [answer.strip() for answer in answers])


def to_number(text: str) -> Decimal | None:
    """All of `text` as a number: thousands may be set off by commas, `$` and `%` may stand around it."""
    bare = text.strip().removeprefix("$").removesuffix("%").strip()
    match = _NUMBER.fullmatch(bare)
    return _decimal(match[0]) if match else None


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "").replace("\u2212", "-"))
    except DecimalException:
        return None


def _same_number(answers: Sequence[str], reply: str, tolerance: float) -> bool:
    numbers = deque(_NUMBER.finditer(reply), maxlen=1)
    given = _decimal(numbers[0][0]) if numbers else None
    if given is None:
        return False
    allowed = Decimal(tolerance)
    for answer in answers:
        wanted = to_number(answer)
        try:
            if wanted is not None and abs(given - wanted) <= allowed * max(Decimal(1), abs(wanted)):
                return True
        except DecimalException:
            continue  # too far apart for the arithmetic
    return False


async def _search(patterns: Sequence[str], text: str, ignore_case: bool) -> float:
    flags = int(re.IGNORECASE) if ignore_case else 0
    request = json.dumps([list(patterns), text, flags]).encode()

    def run() -> bytes:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SEARCH],
            input=request,
            capture_output=True,
            timeout=PATTERN_SECONDS,
            cwd="/",
            check=False,
        ).stdout

    try:
        found = (await in_thread(run)).strip()
    except subprocess.TimeoutExpired as e:
        raise TaskError(
            f"the pattern {patterns[0]!r} was not decided within {PATTERN_SECONDS:g} s",
            hint="it backtracks without end on this reply: make it simpler",
        ) from e
    if found not in (b"0", b"1"):
        raise TaskError(f"the pattern {patterns[0]!r} could not be tried on the reply")
    return float(found == b"1")


async def match_command(
    command: str | Sequence[str], answers: Sequence[str], reply: str, runtime: Runtime
) -> float:
    """What a command in the sandbox says: the number on its last line, or else 1.0, when it exits with 0; else 0.0.

    Answer and reply are given to it in variables and files, never in a shell's text. Raises TaskError when the
    command could not judge: it can't be run (exit codes 126, 127), or a signal or a time limit ended it.
    """
    # A name that the agent could not have put something at.
    here = f".vf-match-{secrets.token_hex(8)}"
    texts = {"ANSWER": "\n".join(answers), "REPLY": reply}
    env = {}
    for name, text in texts.items():
        data = text.encode("utf-8", errors="replace")
        env[f"VF_{name}"] = data[:ENV_LIMIT].replace(b"\0", b"").decode("utf-8", errors="ignore")
        env[f"VF_{name}_FILE"] = f"{here}/{name.lower()}.txt"
        await runtime.write(env[f"VF_{name}_FILE"], data)
    argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
    result = await runtime.run(["sh", "-c", _RUN, "sh", *argv], env)
    if result.timed_out or result.exit_code in (126, 127) or not 0 <= result.exit_code <= 128:
        told = (result.stderr or result.stdout).strip()[-OUTPUT_TAIL:] or "it printed nothing"
        what = "ran out of time" if result.timed_out else f"ended with exit code {result.exit_code}"
        raise TaskError(f"the match command {what}, which judges nothing: {told}")
    return _printed(result.stdout) if result.exit_code == 0 else 0.0


def _printed(output: str) -> float:
    lines = output.strip().splitlines()
    last = lines[-1].strip() if lines else ""
    try:
        number = float(last.replace("_", "?"))  # Python's digit separators are no number elsewhere
    except ValueError:
        return 1.0
    if not math.isfinite(number):
        raise TaskError(f"the match command printed {last!r} as the reward")
    return number
