"""The closing marks of a command's output, however it is cut."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vf_core.runtimes.docker.wrapper import Closing, new_token, wrap, wrap_background

TOKEN = "0123456789ab"
MARK = f"\x1e{TOKEN} 7\x1e".encode()
_PIECES = st.sampled_from([b"\x1e", b"\x1e0", MARK[:5], MARK[:14], MARK[:-1], b"text", b"\xff\x00", b"\n"])


@given(st.lists(_PIECES), st.binary(max_size=8), st.lists(st.integers(0, 60)))
def test_output_is_passed_on_and_the_mark_is_not(pieces, after, cuts):
    output = b"".join(pieces)
    whole = output + MARK + after
    closing, got, at = Closing(TOKEN), b"", 0
    for cut in [*sorted(cuts), len(whole)]:
        got += closing.feed(whole[at : max(at, cut)])
        at = max(at, cut)
    assert got == output[: whole.index(MARK)]
    assert closing.said == "7"
    assert closing.rest() == b""


@given(st.lists(_PIECES), st.lists(st.integers(0, 60)))
def test_output_without_a_mark_is_passed_on_whole(pieces, cuts):
    output = b"".join(piece for piece in pieces if piece != MARK[:-1])
    assert MARK not in output
    closing, got, at = Closing(TOKEN), b"", 0
    for cut in [*sorted(cuts), len(output)]:
        got += closing.feed(output[at : max(at, cut)])
        at = max(at, cut)
    assert got + closing.rest() == output
    assert closing.said is None


def _shells() -> list[list[str]]:
    import shutil

    return [[path] for name in ("sh", "dash", "bash") if (path := shutil.which(name))] + (
        [["busybox", "sh"]] if shutil.which("busybox") else []
    )


@pytest.mark.parametrize("shell", _shells(), ids=" ".join)
@pytest.mark.parametrize(
    ("command", "out", "err", "code"),
    [
        ("echo a; echo b >&2; exit 3", b"a\n", b"b\n", 3),
        ("kill -9 $$", b"", b"", 137),
        ("kill -TERM $$", b"", b"", 143),
        ("kill -TERM $PPID; sleep 0.1; echo on", b"on\n", b"", 0),
        ("trap; (sleep 0.2; echo late) & echo word", b"word\n", b"", 0),
        ("cat; read x || echo end", b"end\n", b"", 0),
        ("trap 'exit 9' TERM; kill -TERM $$; sleep 1", b"", b"", 9),
    ],
)
def test_every_shell_tells_how_its_command_ended(shell, command, out, err, code):
    token = new_token()
    argv = [*shell, *wrap(["sh", "-c", command], token)[1:]]
    ended = subprocess.run(argv, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    for expected, stream in ((out, ended.stdout), (err, ended.stderr)):
        closing = Closing(token)
        assert closing.feed(stream) == expected
        assert closing.said == str(code)


@pytest.mark.parametrize("shell", _shells(), ids=" ".join)
def test_what_cannot_be_run(shell, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("x")
    said = {}
    for name, argv in {
        "missing": wrap(["no-such-program"], TOKEN),
        "plain": wrap([str(plain)], TOKEN),
        "nowhere": wrap(["true"], TOKEN, cwd="/no/such/dir"),
        "builtin": wrap(["echo", "outside"], TOKEN),
        "background": wrap_background(["no-such-program"], TOKEN, "log", cwd=str(tmp_path)),
        "log": wrap_background(["true"], TOKEN, "/proc/none/log", cwd=str(tmp_path)),
        "started": wrap_background(["sh", "-c", "echo x"], TOKEN, "deep/log", cwd=str(tmp_path)),
    }.items():
        ended = subprocess.run([*shell, *argv[1:]], capture_output=True, timeout=60, check=False)
        closing = Closing(TOKEN)
        closing.feed(ended.stdout)
        said[name] = closing.said
    assert said == {
        "missing": "127",
        "plain": "126",
        "nowhere": "directory",
        "builtin": "0",
        "background": "127",
        "log": "log",
        "started": "0",
    }
    assert (tmp_path / "deep" / "log").exists()
