"""What of a package goes into a sandbox with its tools, what cannot, and tools that are served there."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import httpx2
import pytest
from vf_test_caller import call_tool

from doubles.boxed_tools import charts, install
from doubles.engine_host import need_engine
from doubles.engine_images import python_image
from vf_core.errors import ToolsetError
from vf_core.runtimes.docker.config import DockerConfig
from vf_core.runtimes.docker.runtime import DockerRuntime
from vf_core.runtimes.lifecycle import State
from vf_core.tools.install import goods
from vf_core.tools.launch import log_tail, start
from vf_core.tools.wheels import own_wheel, shipment


def test_our_own_wheel_is_the_core_without_the_screen() -> None:
    wheel = own_wheel()
    assert wheel.requirement("/d") == f"vf-tui @ file:///d/{wheel.file}"
    with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
        names = archive.namelist()
        told = archive.read(f"vf_tui-{wheel.version}.dist-info/METADATA").decode()
    assert "vf_core/tools/serve.py" in names
    assert not [name for name in names if name.startswith("vf_tui/") or "__pycache__" in name]
    assert "Requires-Dist: mcp" in told
    assert "Requires-Dist: textual" not in told


def test_an_installed_package_goes_as_its_files_with_its_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P05."""
    module = charts(tmp_path, monkeypatch, "vf_charts_a")
    ours, theirs = goods(module.Charts())
    assert ours.name == "vf-tui"
    assert theirs.requirement("/d") == "vf-charts-a[chart] @ file:///d/vf_charts_a-1.2-py3-none-any.whl"
    assert theirs.of_extras == ("annotated-types",)
    with zipfile.ZipFile(io.BytesIO(theirs.data)) as archive:
        assert "vf_charts_a.py" in archive.namelist()


def test_a_project_that_is_worked_on_goes_as_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / ".venv").mkdir(parents=True)
    (project / ".venv" / "big").write_bytes(b"x")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "vf-loose"\nversion = "3"\noptional-dependencies.a = []\n'
    )
    (project / "vf_loose_b.py").write_text("")
    monkeypatch.syspath_prepend(str(project))
    __import__("vf_loose_b")
    sent = shipment("vf_loose_b", ("a",))
    assert sent is not None
    assert sent.requirement("/d") == "vf-loose[a] @ file:///d/vf-loose"
    with tarfile.open(fileobj=io.BytesIO(sent.data)) as tar:
        assert sorted(tar.getnames()) == ["vf-loose/pyproject.toml", "vf-loose/vf_loose_b.py"]
    with pytest.raises(ToolsetError, match="EXTRAS name 'b', and vf-loose has no such extra"):
        shipment("vf_loose_b", ("b",))


@pytest.mark.parametrize("trouble", ["extras", "compiled", "loose"])
def test_what_cannot_be_sent_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    name = f"vf_bad_{trouble}"
    if trouble == "extras":
        module = charts(tmp_path, monkeypatch, name, extras=("plot",))
        with pytest.raises(ToolsetError, match="EXTRAS name 'plot', and vf-bad-extras has no such extra"):
            goods(module.Charts())
        return
    if trouble == "compiled":
        install(tmp_path, monkeypatch, name, {f"{name}.py": "", f"{name}_fast.so": b"\x7fELF"})
    else:
        (tmp_path / f"{name}.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path))
        __import__(name)
    with pytest.raises(ToolsetError) as caught:
        shipment(name, ())
    why = {"compiled": "has parts compiled for this machine", "loose": "belongs to no installed package"}
    assert why[trouble] in str(caught.value)
    assert name in sys.modules


async def test_tools_are_served_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M08, M10, P05: what starts the server has long ended when it is called, and its log is there to be read."""
    monkeypatch.setenv("DOCKER_HOST", need_engine())
    module = charts(tmp_path, monkeypatch, "vf_charts_c")
    image = python_image()
    runtime = DockerRuntime(DockerConfig(image=image, pull="never"), name="vf-test-tools-boxed")
    await runtime.start()
    try:
        server = await start(module.Charts(module.Config(greeting="hi")), runtime)
        left = await runtime.run(
            ["sh", "-c", f"ls -A {server.log.rpartition('/')[0]}; cat /proc/[0-9]*/cmdline"]
        )
        assert "spec.json\n" not in left.stdout
        assert server.token not in left.stdout
        # The launching command has returned and others came and went; the server is still there.
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await call_tool(
                client, server.url, "draw", {"what": "you"}, {**server.headers, "host": "box"}
            )
            assert answer == "hi you by annotated_types"
            assert (await call_tool(client, server.url, "draw", {"what": "you"})).startswith("HTTP 401")
        assert "charts are ready" in await log_tail(runtime, server.log)
    finally:
        await runtime.stop_confirmed()
    assert runtime.state is State.GONE
