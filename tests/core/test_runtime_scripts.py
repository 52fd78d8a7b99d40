"""Python programs with a header: which interpreter runs them, and that nothing around them gets in."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.local_boxes import local_box
from vf_core.errors import HarnessError
from vf_core.runtimes import records, scripts
from vf_core.runtimes.scripts import Header, parse_header, unsatisfied
from vf_core.runtimes.subprocess import SubprocessRuntime


def program(*dependencies: str, python: str = ">=3.9", body: str = "print('ran')") -> str:
    listed = "".join(f'#   "{dependency}",\n' for dependency in dependencies)
    return f'# /// script\n# requires-python = "{python}"\n# dependencies = [\n{listed}# ]\n# ///\n{body}\n'


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(scripts, "_prepared", {})
    return tmp_path / "cache" / "vf-tui" / "scripts"


@pytest.fixture
async def box() -> AsyncIterator[SubprocessRuntime]:
    box = local_box()
    await box.start()
    yield box
    await box.stop_confirmed()


# ---------------------------------------------------------------------- headers


def test_headers():
    assert parse_header(program("httpx>=0.28,<1", "rich")) == Header(">=3.9", ("httpx>=0.28,<1", "rich"))
    assert parse_header(program("a").replace("\n", "\r\n")) == Header(">=3.9", ("a",))
    assert parse_header("print('# /// script')") == Header()
    assert parse_header("#!/usr/bin/env python\n\n" + program("a")).dependencies == ("a",)
    assert parse_header(program("a")).with_more(["b", "a"]).dependencies == ("a", "b")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (program("a") + program("b"), "more than one"),
        ("# /// script\n# dependencies = [\n# ///\n", "cannot be read"),
        ("# /// script\n# dependencies = [1]\n# ///\n", "list of texts"),
        ("# /// script\n# requires-python = 3\n# ///\n", "is a text"),
        ("# /// script\n# dependencies = 7\n# ///\n", "cannot be read"),
    ],
)
def test_headers_that_cannot_be_read(source, said):
    with pytest.raises(HarnessError, match=said):
        parse_header(source)


@given(
    st.lists(st.from_regex(r"[a-z]{1,8}(?:>=[0-9]\.[0-9])?", fullmatch=True), unique=True, max_size=5),
    st.text(),
)
def test_a_header_that_is_written_is_read_back(dependencies, body):
    header = Header(">=3.10", tuple(dependencies))
    body = "\n".join(line for line in body.splitlines() if not line.startswith("# ///"))
    for source in (body, program("x>1", body=body), "#!/usr/bin/python3\n" + program(body=body)):
        written = scripts.with_header(source, header)
        assert parse_header(written) == header
        assert written.startswith("#!") == source.startswith("#!")


def test_what_this_interpreter_has():
    assert unsatisfied(Header(">=3.9", ("pytest>=8", "HYPOTHESIS", "nothing; python_version < '3'"))) == []
    assert unsatisfied(Header(">=4", ("pytest<1", "no-such-package-at-all"))) == [
        "Python >=4",
        "pytest<1",
        "no-such-package-at-all",
    ]
    assert unsatisfied(Header("", ("pytest @ https://example.org/pytest.whl",))) != []
    assert unsatisfied(Header("", ("pytest[no-such-extra]",))) == []
    with pytest.raises(HarnessError, match="no requirement"):
        unsatisfied(Header("", ("not a requirement!",)))


# ---------------------------------------------------------------------- by this interpreter


async def test_nothing_around_it_gets_in(box, monkeypatch):
    """R25, R20: modules in the working directory, Python's variables, the locale."""
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    await box.write("json.py", b"raise SystemExit('the wrong json')")
    await box.write("sitecustomize.py", b"raise SystemExit('the wrong site')")
    body = (
        "import json, sys, pytest\nprint(json.dumps([sys.executable, sys.argv[1:], '€']))\nprint('\\u20ac')"
    )
    argv = await box.prepare_script(program("pytest", body=body))
    assert argv[0] == sys.executable
    result = await box.run([*argv, "a"], {"PYTHONPATH": ".", "PYTHONHOME": "/nowhere", "LC_ALL": "C"})
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith('["a"], "\\u20ac"]\n€\n')


async def test_tracebacks_show_the_source(box):
    argv = await box.prepare_script(program(body="def f():\n    raise ValueError('here')  # this line\nf()"))
    result = await box.run(argv)
    assert "# this line" in result.stderr
    assert "line 7" in result.stderr


async def test_kept_privately_under_a_name_of_its_content(box, cache):
    first = await box.prepare_script(program(body="print(1)"))
    again = await box.prepare_script(program(body="print(1)"))
    other = await box.prepare_script(program(body="print(2)"))
    assert first == again != other
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert len(list(cache.iterdir())) == 4
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in cache.iterdir())


async def test_a_torn_or_missing_file_is_made_again(box, cache):
    source = program()
    argv = await box.prepare_script(source)
    Path(argv[-1]).unlink()
    assert (await box.run(await box.prepare_script(source))).stdout == "ran\n"
    Path(argv[-1]).write_bytes(b"")
    scripts._prepared.clear()
    assert (await box.run(await box.prepare_script(source))).stdout == "ran\n"


async def test_many_at_once_prepare_one(box, cache):
    prepared = await asyncio.gather(*(box.prepare_script(program()) for _ in range(20)))
    assert len({tuple(argv) for argv in prepared}) == 1
    assert len(list(cache.iterdir())) == 2


async def test_without_a_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(records, "_root", None)
    box = local_box()
    await box.start()
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    argv = await box.prepare_script(program())
    assert (await box.run(argv)).stdout == "ran\n"
    assert Path(argv[-1]).is_relative_to(records.private_root())
    await box.stop_confirmed()
    records._leave_root()
    assert list(tmp_path.iterdir()) == [blocked]


@pytest.mark.parametrize("source", ["def f(:", "x = '\0'", "x = '\ud800'"])
async def test_not_python(box, source):
    with pytest.raises(HarnessError, match="not valid Python"):
        await box.prepare_script(source)


# ---------------------------------------------------------------------- by uv


def fake_uv(place: Path, interpreter: str = sys.executable, sync: str = "exit 0") -> None:
    """A uv that notes how it was called."""
    place.mkdir(exist_ok=True)
    uv = place / "uv"
    uv.write_text(
        f'#!/bin/sh\necho "$PWD|${{VIRTUAL_ENV-none}}|$*" >> {place}/calls\n'
        f'case "$1" in\n  sync) {sync};;\n  python) echo {interpreter};;\nesac\n'
    )
    uv.chmod(0o755)


async def test_what_is_not_here_comes_by_uv(box, cache, monkeypatch, tmp_path):
    fake_uv(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    argv = await asyncio.gather(*(box.prepare_script(program(), ["no-such-package>=2"]) for _ in range(3)))
    assert argv[0] == argv[1] == argv[2]
    assert argv[0][0] == sys.executable
    assert (await box.run(argv[0])).stdout == "ran\n"
    script = Path(argv[0][-1])
    assert parse_header(script.read_text()).dependencies == ("no-such-package>=2",)
    # Away from the sandbox, whose uv.toml is not ours; deaf to configuration; once.
    assert (tmp_path / "bin" / "calls").read_text().splitlines() == [
        f"{cache}|none|sync --script {script} --no-config -q",
        f"{cache}|none|python find --script {script} --no-config",
    ]


async def test_without_uv(box, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessError, match="needs no-such-package, which this Python") as raised:
        await box.prepare_script(program("no-such-package"))
    assert "install uv" in str(raised.value)


async def test_uv_that_fails(box, monkeypatch, tmp_path):
    fake_uv(tmp_path / "bin", sync="echo No solution found >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(
        HarnessError, match=r"uv exited with 1 while preparing no-such-package: .*No solution found"
    ):
        await box.prepare_script(program("no-such-package"))
    # Nothing of the failure is kept.
    fake_uv(tmp_path / "bin")
    assert (await box.run(await box.prepare_script(program("no-such-package")))).stdout == "ran\n"


async def test_uv_that_names_no_interpreter(box, monkeypatch, tmp_path):
    fake_uv(tmp_path / "bin", interpreter="/nowhere/python")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(HarnessError, match="names no interpreter"):
        await box.prepare_script(program("no-such-package"))


async def test_uv_that_is_cancelled_is_killed(box, monkeypatch, tmp_path):
    fake_uv(tmp_path / "bin", sync=f"echo $$ > {tmp_path}/pid; exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    task = asyncio.ensure_future(box.prepare_script(program("no-such-package")))
    async with asyncio.timeout(60):
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pid = int((tmp_path / "pid").read_text())
    async with asyncio.timeout(60):
        while os.path.exists(f"/proc/{pid}"):
            await asyncio.sleep(0.01)
