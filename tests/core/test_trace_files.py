"""traces.jsonl: written whole or not at all, read whatever a crash left."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.traces import agent_loop, blank, reply, turn, user
from vf_core.errors import RunDirError
from vf_core.trace import reader
from vf_core.trace import writer as writing
from vf_core.trace.reader import ReadRecord, Torn, TraceIndex, read_records, repair
from vf_core.trace.record import Trace
from vf_core.trace.writer import TraceWriter, encode


def ids(path: Path) -> list[str]:
    return [entry.record["id"] if isinstance(entry, ReadRecord) else "torn" for entry in read_records(path)]


def record(ident: str, **fields: Any) -> dict[str, Any]:
    return {"id": ident, "task": {"type": "T", "data": {"idx": 0, "prompt": "p"}}, **fields}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    traces = [agent_loop(turns=i) for i in range(3)]
    with TraceWriter(path) as writer:
        for trace in traces:
            writer.write(trace)
            assert ids(path)[-1] == trace.id  # there before the writer is closed
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    read = [entry.trace() for entry in read_records(path) if isinstance(entry, ReadRecord)]
    assert [t.to_record() for t in read] == [t.to_record() for t in traces]
    writer.close()
    with pytest.raises(RunDirError, match="is closed"):
        writer.write(traces[0])


@pytest.mark.parametrize("separator", ["\u0085", "\u2028", "\u2029", "\x0c", "\r", "\x1c", "\x0b", "\r\n"])
def test_only_a_newline_ends_a_record(tmp_path: Path, separator: str) -> None:
    """X02."""
    path = tmp_path / "traces.jsonl"
    text = f"a{separator}b{separator}"
    trace = blank()
    turn(trace, [user(text)], reply(text))
    with TraceWriter(path) as writer:
        writer.write(trace)
        writer.write(trace)
    # Another producer's file, which leaves such characters as they are.
    raw = json.dumps(record("raw", info={"t": text}), ensure_ascii=False)
    with path.open("ab") as file:
        file.write(raw.encode() + b"\n")
    entries = [entry for entry in read_records(path) if isinstance(entry, ReadRecord)]
    assert [entry.line for entry in entries] == [1, 2, 3]
    assert entries[0].trace().nodes[0].message.content == text
    assert entries[2].record["info"]["t"] == text


def test_lone_surrogates_in_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    raw = json.dumps(record("a", info={"t": "\ud800"}), ensure_ascii=False)
    path.write_bytes(raw.encode("utf-8", errors="surrogatepass") + b"\n")
    assert [entry.record["info"]["t"] for entry in read_records(path) if isinstance(entry, ReadRecord)] == [
        "\ud800"
    ]


WHOLE = encode(record("a", info={"t": "é"})) + encode(record("b")) + encode(record("c", info={"t": "日本"}))
LAST = len(encode(record("a", info={"t": "é"})) + encode(record("b")))


def test_a_file_cut_anywhere_loses_nothing_before_the_cut(tmp_path: Path) -> None:
    """X01: cut, resumed, cut again, resumed."""
    for cut in range(LAST, len(WHOLE)):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(WHOLE[:cut])
        whole = cut in (LAST, len(WHOLE) - 1)
        assert ids(path) == ["a", "b"] + ([] if cut == LAST else ["c"] if whole else ["torn"])
        with TraceWriter(path) as writer:
            writer.write(record("d"))
        assert (writer.repaired is None) == (cut == LAST)
        known = ["a", "b", *(["c"] if cut == len(WHOLE) - 1 else []), "d"]
        assert ids(path) == known
        with path.open("ab") as file:
            file.write(b'{"id":"e","task"')
        with TraceWriter(path) as writer:
            writer.write(record("f"))
        assert ids(path) == [*known, "f"]
        assert all(json.loads(line) for line in path.read_bytes().splitlines())


def test_the_torn_part_is_kept_aside(tmp_path: Path) -> None:
    """X01: also in the middle of a character."""
    path = tmp_path / "traces.jsonl"
    tail = '{"id":"c","info":{"t":"日'.encode()[:-1]
    for number in (1, 2):
        path.write_bytes(WHOLE[:LAST] + tail)
        torn = list(read_records(path))[-1]
        assert isinstance(torn, Torn)
        assert (torn.line, torn.offset, torn.size, torn.last) == (3, LAST, len(tail), True)
        done = repair(path)
        assert done is not None
        assert done.aside == tmp_path / f"traces.jsonl.torn-{number}"
        assert done.aside.read_bytes() == tail
        assert stat.S_IMODE(done.aside.stat().st_mode) == 0o600
        assert path.read_bytes() == WHOLE[:LAST]
        assert repair(path) is None


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n  \n"])
def test_an_empty_file_is_well(tmp_path: Path, content: bytes) -> None:
    """X01."""
    path = tmp_path / "traces.jsonl"
    path.write_bytes(content)
    assert ids(path) == []
    assert repair(path) is None
    with TraceWriter(path) as writer:
        writer.write(record("a"))
    assert ids(path) == ["a"]


@pytest.mark.parametrize("tail", [b"\0" * 500, b"\0" * 500 + b"\n", b"[1]\n", b"7", b"{}}\n", b"[" * 200_000])
def test_other_tails_are_torn_too(tmp_path: Path, tail: bytes) -> None:
    """X01: a file system that lost the data of the last blocks, another program's line."""
    path = tmp_path / "traces.jsonl"
    path.write_bytes(WHOLE + tail)
    assert ids(path) == ["a", "b", "c", "torn"]
    with TraceWriter(path) as writer:
        writer.write(record("d"))
    assert ids(path) == ["a", "b", "c", "d"]


def test_a_bad_line_in_the_middle_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(encode(record("a")) + b'{"id": "half\n\n' + encode(record("b")))
    entries = list(read_records(path))
    assert [type(entry) for entry in entries] == [ReadRecord, Torn, ReadRecord]
    torn = entries[1]
    assert isinstance(torn, Torn)
    assert (torn.line, torn.last) == (2, False)
    assert repair(path) is None


def test_a_long_last_line_is_found_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "CHUNK", 7)
    path = tmp_path / "traces.jsonl"
    for tail in (b"", b"x", b"x" * 6, b"x" * 7, b"x" * 8, b"x" * 100):
        path.write_bytes(WHOLE + tail)
        done = repair(path)
        assert (done.size if done else 0) == len(tail)
        assert path.read_bytes() == WHOLE
        assert len(TraceIndex(path)) == 3


def test_errors_say_which_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    with pytest.raises(RunDirError, match=r"traces\.jsonl can't be read: No such file"):
        list(read_records(path))
    with pytest.raises(RunDirError, match="can't be read"):
        TraceIndex(path)
    path.write_bytes(encode(record("a")) + encode({"id": "b", "task": 3}))
    last = list(read_records(path))[-1]
    assert isinstance(last, ReadRecord)
    with pytest.raises(RunDirError, match=r"traces.jsonl, line 2: not a trace record"):
        last.trace()
    with pytest.raises(RunDirError, match="can't be opened"):
        TraceWriter(tmp_path)


def test_a_full_disk_leaves_the_file_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X08."""
    path = tmp_path / "traces.jsonl"
    writer = TraceWriter(path)
    writer.write(record("a"))
    real = os.write

    def full(fd: int, data: Any) -> int:
        if len(data) <= 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, bytes(data[: len(data) // 2]))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunDirError, match="No space left on device"):
        writer.write(record("b"))
    monkeypatch.undo()
    assert ids(path) == ["a"]
    writer.write(record("c"))
    assert ids(path) == ["a", "c"]
    writer.close()


def test_a_removed_directory_is_noticed(tmp_path: Path) -> None:
    """X08."""
    path = tmp_path / "run" / "traces.jsonl"
    path.parent.mkdir()
    with TraceWriter(path) as writer:
        writer.write(record("a"))
        shutil.rmtree(path.parent)
        with pytest.raises(RunDirError, match="was removed"):
            writer.write(record("b"))


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    with TraceWriter(path) as writer:
        threads = [
            threading.Thread(
                target=lambda n=n: [
                    writer.write(record(f"{n}-{i}", info={"t": "x" * 5000})) for i in range(20)
                ]
            )
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(ids(path))) == 160


def test_an_index_follows_a_growing_file(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(WHOLE)
    index = TraceIndex(path)
    assert (len(index), index.records(1)[0]["id"]) == (3, "b")
    with path.open("ab") as file:
        file.write(b'{"id":"d"')
        file.flush()
        assert (index.refresh(), index.get("d")) == (0, None)
        file.write(b',"task":{}}\nnonsense\n')
        file.flush()
        assert index.refresh() == 2
    assert index.get("d") == {"id": "d", "task": {}}
    assert index.records(4) == []
    assert index.get("nobody") is None
    with path.open("ab") as file:
        file.write(encode(record("a", info={"again": True})))
    index.refresh()
    assert (index.get("a") or {})["info"] == {"again": True}
    path.write_bytes(encode(record("z")))
    index.refresh()
    assert (len(index), index.get("a")) == (1, None)
    assert index.get("z") == record("z")


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(values, min_size=1, max_size=4), st.integers(0, 400))
@settings(max_examples=60)
def test_any_record_cut_anywhere(
    tmp_path_factory: pytest.TempPathFactory, infos: list[Any], back: int
) -> None:
    """Whatever is in the records and wherever the file ends: the whole ones are read, as they were."""
    path = tmp_path_factory.mktemp("cut") / "traces.jsonl"
    traces = []
    for info in infos:
        trace = blank()
        trace.info["x"] = info
        traces.append(trace)
    lines = [encode(trace.to_record()) for trace in traces]
    whole = b"".join(lines)
    end = max(0, len(whole) - back)
    path.write_bytes(whole[:end])
    complete = sum(len(b"".join(lines[: i + 1])) - 1 <= end for i in range(len(lines)))
    with TraceWriter(path) as writer:
        writer.write(traces[0])
    read = [entry for entry in read_records(path) if isinstance(entry, ReadRecord)]
    assert [entry.record for entry in read] == [json.loads(line) for line in [*lines[:complete], lines[0]]]
    assert all(isinstance(Trace.from_record(entry.record), Trace) for entry in read)


def test_x07_a_large_record_is_written_in_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a piece of JSON holds up every thread: a screen in this process, and model calls."""
    sizes: list[int] = []
    encoder = writing._ENCODER

    class Counting:
        def encode(self, value: Any) -> str:
            text = encoder.encode(value)
            sizes.append(len(text))
            return text

    trace = agent_loop(1)
    large = trace.to_record()
    message = {"parent": 0, "message": {"role": "tool", "content": "ü\n" * 50_000}, "sampled": False}
    large["nodes"] = large["nodes"] + [message] * 40
    monkeypatch.setattr(writing, "_ENCODER", Counting())
    with TraceWriter(tmp_path / "t.jsonl") as out:
        out.write(large)
    line = (tmp_path / "t.jsonl").read_bytes()
    assert len(line) > 16_000_000
    assert max(sizes) < 500_000
    assert json.loads(line) == large
    assert hash(line) == hash(encoder.encode(large).encode() + b"\n")
