"""The `edit` and `search` tools, and the echo of a command's output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from vf_core.harnesses.program import local_tools
from vf_core.harnesses.program.local_tools import ECHO_LIMIT, bash_tool, edit_tool, search_tool


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _edit(old: object, new: object, path: object = "f.txt") -> str:
    return edit_tool({"path": path, "old_str": old, "new_str": new})


def test_edit_replaces_the_one_occurrence_and_keeps_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "f.txt"
    file.write_bytes("a\r\nbé\r\nc".encode())
    file.chmod(0o755)
    assert _edit("bé", "x\ny") == "Edited f.txt."
    assert file.read_bytes() == b"a\r\nx\ny\r\nc"
    assert file.stat().st_mode & 0o777 == 0o755
    assert _edit("x\ny", "", str(file)) == f"Edited {file}."
    assert file.read_bytes() == b"a\r\n\r\nc"


@pytest.mark.parametrize(
    ("old", "new", "path", "says"),
    [
        ("a", "b", "f.txt", "occurs 2 times"),
        ("zz", "b", "f.txt", "occurs 0 times"),
        ("", "b", "f.txt", "must not be empty"),
        (None, "b", "f.txt", "must be strings"),
        ("a", 1, "f.txt", "must be strings"),
        ("a", "b", "", "'path'"),
        ("a", "b", None, "'path'"),
        ("a", "b", "missing", "No such file"),
        ("a", "b", ".", "directory"),
        ("a", "b", "bin", "could not be edited"),
        ("a", "b", "x\0y", "could not be edited"),
    ],
)
def test_an_edit_that_cannot_be_made_is_an_error_result(
    tmp_path: Path, old: object, new: object, path: object, says: str
) -> None:
    (tmp_path / "f.txt").write_text("a a")
    (tmp_path / "bin").write_bytes(b"\xff\xfea")
    result = _edit(old, new, path)
    assert result.startswith("error:")
    assert says in result
    assert (tmp_path / "f.txt").read_text() == "a a"


@pytest.fixture
async def serper(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[tuple[str, str]]]:
    """A search service that remembers the key and the query it was sent."""
    asked: list[tuple[str, str]] = []

    async def search(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append((request.headers["X-API-KEY"], body["q"]))
        if body["q"] == "fail":
            return web.Response(status=500)
        found = [{"title": f" T{n} ", "link": f"http://x/{n}", "snippet": f"S{n}"} for n in range(8)]
        return web.json_response({"organic": [] if body["q"] == "nothing" else [*found, {"link": None}]})

    app = web.Application()
    app.router.add_post("/search", search)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(local_tools, "SEARCH_URL", f"http://127.0.0.1:{runner.addresses[0][1]}/search")
    yield asked
    await runner.cleanup()


async def test_search_gives_title_url_and_snippet(serper: list[tuple[str, str]]) -> None:
    search = search_tool("the key")
    two = await asyncio.to_thread(search, {"query": "q", "num_results": 2})
    assert two == "T0\nhttp://x/0\nS0\n\nT1\nhttp://x/1\nS1"
    assert serper == [("the key", "q")]
    default = await asyncio.to_thread(search, {"query": "q", "num_results": "ten"})
    assert default.count("http://") == 5
    assert await asyncio.to_thread(search, {"query": "nothing"}) == "No results for 'nothing'."


async def test_a_search_that_fails_is_an_error_result(serper: list[tuple[str, str]]) -> None:
    search = search_tool("the key")
    failed = await asyncio.to_thread(search, {"query": "fail"})
    assert failed.startswith("error: the search failed: HTTPStatusError")
    assert "the key" not in failed
    assert search({"query": " "}).startswith("error: 'query'")
    assert search({"query": json.dumps}).startswith("error: 'query'")


def test_output_is_repeated_up_to_a_limit(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    result = bash_tool()({"command": f"head -c {ECHO_LIMIT + 5} /dev/zero | tr '\\0' x"})
    shown = capfdbinary.readouterr().out
    assert shown.startswith(b"x" * ECHO_LIMIT + b"\n[the rest")
    assert shown.count(b"x") == ECHO_LIMIT
    assert len(result) < ECHO_LIMIT


@pytest.mark.parametrize("arguments", [{}, {"command": ""}, {"command": 3}, {"command": ["ls"]}])
def test_bash_wants_a_command(arguments: dict[str, object]) -> None:
    assert bash_tool()(arguments).startswith("error: 'command'")
