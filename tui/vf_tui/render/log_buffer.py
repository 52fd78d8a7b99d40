"""A bounded store of lines: how many rows each takes when wrapped, where the matches are, what was dropped."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from vf_tui.render.line import Line, Segment, plain, wrap
from vf_tui.safe_text import LINE_LIMIT, coloured, whole_line

LINES_KEPT = 10_000
CHARACTERS_KEPT = 2_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A line as it is shown: cleaned runs, the plain text, a style for all of it, and when it came (0: unknown)."""

    runs: tuple[Segment, ...]
    text: str
    t: float = 0.0


class LogBuffer:
    """Lines numbered from the first ever added; the oldest are dropped beyond `max_lines` or `max_chars`.

    Rows are what lines become when wrapped at `cells`; they are numbered from the oldest line that is kept.
    """

    def __init__(
        self,
        *,
        max_lines: int = LINES_KEPT,
        max_chars: int = CHARACTERS_KEPT,
        colour: bool = False,
    ) -> None:
        self.max_lines, self.max_chars, self.colour = max_lines, max_chars, colour
        self.dropped = 0
        self._lines: deque[Entry] = deque()
        self._chars = 0
        self._partial = ""
        self._partial_over = 0
        self._open = False
        self._cells = 0
        self._ends: list[int] = []
        self._base = 0

    def __len__(self) -> int:
        return len(self._lines)

    # -- adding

    def feed(self, chunk: str, t: float = 0.0) -> int:
        """Add raw output; a chunk may end within a line, which goes on with the next. Lines added or changed."""
        if not chunk:
            return 0
        parts = chunk.split("\n")
        touched = 0
        for i, part in enumerate(parts):
            self._extend(part)
            last = i == len(parts) - 1
            if last and not self._partial:
                break
            self._put(self._partial, self._partial_over, t)
            touched += 1
            if last:
                self._open = True
            else:
                self._partial, self._partial_over, self._open = "", 0, False
        self._trim()
        return touched

    def _extend(self, part: str) -> None:
        """Go on with the unfinished line, of which no more than the limit is held."""
        if "\r" in part:
            # Only what follows the last carriage return that is followed by something is seen.
            body = part.rstrip("\r")
            kept = body.rfind("\r")
            if kept >= 0:
                self._partial, self._partial_over = "", 0
                part = part[kept + 1 :]
        elif self._partial.endswith("\r") and part:
            self._partial, self._partial_over = "", 0
        room = LINE_LIMIT - len(self._partial)
        if len(part) > room:
            self._partial_over += len(part) - max(0, room)
            part = part[: max(0, room)]
        self._partial += part

    def _put(self, raw: str, over: int, t: float) -> None:
        if self._open:
            t = self._lines[-1].t
            self.take_back()
            self._open = False
        self.add(raw, t, over=over)

    def add(self, raw: str, t: float = 0.0, *, style: str = "", over: int = 0) -> None:
        """Add one line, drawn in `style`. `over`: characters of it that were not even kept."""
        runs = coloured(raw) if self.colour else (((text, ""),) if (text := whole_line(raw)) else ())
        if style:
            runs = tuple((text, name or style) for text, name in runs)
        if over:
            runs = (*runs, (f" … {over:,} more characters", "faint"))
        self._append(Entry(runs, "".join(text for text, _ in runs), t))

    def add_line(self, line: Line, t: float = 0.0) -> None:
        """Add one line that is clean and styled already."""
        self._append(Entry(line, "".join(text for text, _ in line), t))

    def _append(self, entry: Entry) -> None:
        self._lines.append(entry)
        self._chars += len(entry.text)
        if self._cells:
            self._ends.append(self._last_end() + self._height(entry))
        if len(self._lines) > self.max_lines * 2:
            self._trim()

    @property
    def unfinished(self) -> bool:
        """The last line may still go on."""
        return self._open

    def add_entry(self, entry: Entry) -> None:
        """Add a line of another buffer."""
        self._append(entry)

    def take_back(self) -> None:
        """Remove the last line."""
        self._chars -= len(self._lines.pop().text)
        if self._ends:
            self._ends.pop()

    def trim(self) -> None:
        """Drop what is over the bounds."""
        self._trim()

    def _trim(self) -> None:
        drop = 0
        while len(self._lines) > 1 and (len(self._lines) > self.max_lines or self._chars > self.max_chars):
            self._chars -= len(self._lines.popleft().text)
            drop += 1
        if drop:
            self.dropped += drop
            if self._cells:
                self._base = self._ends[drop - 1]
                del self._ends[:drop]

    def clear(self) -> None:
        """Forget everything."""
        self._lines.clear()
        self._ends.clear()
        self._chars = self._base = self.dropped = 0
        self._partial, self._partial_over, self._open = "", 0, False

    # -- rows

    def wrap_at(self, cells: int) -> None:
        """Wrap lines at `cells` (0: don't); costs a walk over all lines when that is new."""
        if cells == self._cells:
            return
        self._cells = cells
        self._ends, self._base = [], 0
        if cells:
            end = 0
            for entry in self._lines:
                end += self._height(entry)
                self._ends.append(end)

    def _last_end(self) -> int:
        return self._ends[-1] if self._ends else self._base

    def _height(self, entry: Entry) -> int:
        text = entry.text
        if len(text) * 2 <= self._cells or (len(text) <= self._cells and plain(text)):
            return 1
        return len(wrap(text, self._cells))

    @property
    def rows(self) -> int:
        """Rows in all."""
        return self._last_end() - self._base if self._cells else len(self._lines)

    @property
    def first_row(self) -> int:
        """The number of the oldest kept row, counted from the first ever (in the present wrapping)."""
        return self._base if self._cells else self.dropped

    def row(self, row: int) -> tuple[int, int]:
        """The (line, piece) that row `row` shows, the line counted among those kept."""
        if not self._cells:
            return row, 0
        line = bisect_right(self._ends, row + self._base)
        start = self._ends[line - 1] if line else self._base
        return line, row + self._base - start

    def row_of(self, line: int) -> int:
        """The first row of kept line `line`."""
        if not self._cells:
            return line
        return (self._ends[line - 1] if line else self._base) - self._base

    def entry(self, line: int) -> Entry | None:
        """Kept line `line`."""
        return self._lines[line] if 0 <= line < len(self._lines) else None

    def index(self, entry: Entry) -> int | None:
        """The kept line that is `entry`."""
        return next((i for i, line in enumerate(self._lines) if line is entry), None)

    def piece(self, entry: Entry, part: int) -> Line:
        """Piece `part` of a wrapped line."""
        if not self._cells or not entry.text:
            return entry.runs
        pieces = wrap(entry.text, self._cells)
        if len(pieces) == 1:
            return entry.runs
        start = sum(len(piece) for piece in pieces[:part])
        return slice_runs(entry.runs, start, start + len(pieces[part])) if part < len(pieces) else ()

    # -- searching

    def find(self, pattern: re.Pattern[str], start: int, step: int) -> int | None:
        """The nearest line from kept line `start` on, in direction `step`, that `pattern` is found in."""
        if step > 0:
            for i in range(max(0, start), len(self._lines)):
                if pattern.search(self._lines[i].text):
                    return i
        else:
            for i in range(min(start, len(self._lines) - 1), -1, -1):
                if pattern.search(self._lines[i].text):
                    return i
        return None

    def count(self, pattern: re.Pattern[str]) -> int:
        """Kept lines in which `pattern` is found."""
        return sum(1 for entry in self._lines if pattern.search(entry.text))

    def text(self) -> str:
        """All kept lines, for copying."""
        return "\n".join(entry.text for entry in self._lines)


class Sieve:
    """The lines of `source` that `wanted` lets through, in `kept`; a line that may still go on is looked at again."""

    def __init__(self, source: LogBuffer, wanted: Callable[[str], bool]) -> None:
        self._source, self._wanted = source, wanted
        self.kept = LogBuffer(max_lines=source.max_lines, max_chars=source.max_chars)
        self.again()

    def again(self) -> None:
        """Look at all lines anew."""
        self.kept.clear()
        self._seen, self._loose = 0, False
        self.sift()

    def sift(self) -> int:
        """Look at what was added to the source; how many lines came or went."""
        source, before = self._source, len(self.kept)
        if self._loose:
            self.kept.take_back()
        for line in range(max(0, self._seen - source.dropped), len(source)):
            entry = source.entry(line)
            self._loose = False
            if entry is not None and self._wanted(entry.text):
                self.kept.add_entry(entry)
                self._loose = source.unfinished and line == len(source) - 1
        self._seen = source.dropped + len(source) - source.unfinished
        self.kept.trim()
        return abs(len(self.kept) - before) or int(self._loose)


def slice_runs(runs: Line, start: int, end: int) -> Line:
    """Characters [start, end) of `runs`."""
    out: list[Segment] = []
    at = 0
    for text, style in runs:
        piece = text[max(0, start - at) : max(0, end - at)]
        if piece:
            out.append((piece, style))
        at += len(text)
        if at >= end:
            break
    return tuple(out)


def highlight(line: Line, pattern: re.Pattern[str], style: str) -> Line:
    """`line` with what `pattern` finds in it in `style`."""
    text = "".join(part for part, _ in line)
    out: list[Segment] = []
    end = 0
    for match in pattern.finditer(text):
        if match.end() == match.start():
            continue
        out += slice_runs(line, end, match.start())
        out.append((match.group(), style))
        end = match.end()
    return (*out, *slice_runs(line, end, len(text))) if end else line
