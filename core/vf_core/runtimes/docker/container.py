"""What a container of ours is made with."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from vf_core.runtimes import labels
from vf_core.runtimes.docker.config import DockerConfig
from vf_core.runtimes.remote import parse_gpu
from vf_core.text import slug

NAME_LABEL: Final = "name"
_GB: Final = 1 << 30

# Process 1, when the engine has no init of its own, and the child of that when it has: it reaps, ends at TERM, and
# ends after $1 seconds (0: never), whoever is left to see to that.
_IDLE = """
trap 'exit 0' TERM INT
command -v sleep >/dev/null || exit 127
if [ "$1" -eq 0 ]; then
  while :; do sleep 86400 & wait "$!" || sleep 1; done
fi
end=$(($(date +%s) + $1))
while left=$((end - $(date +%s))); [ "$left" -gt 0 ]; do sleep "$left" & wait "$!" || sleep 1; done
"""


def unique_name(name: str) -> str:
    """A container's name that no other one has, after its sandbox's."""
    return f"{slug(name, limit=50).lstrip('_') or 'vf'}-{secrets.token_hex(5)}"


def mark(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """The labels of our own: whose it is, and the name that the ledger knows it by."""
    return labels.encode({**given, NAME_LABEL: name})


def spec(
    config: DockerConfig, name: str, given: Mapping[str, str], *, init: bool, checked: bool = False
) -> dict[str, Any]:
    """A create request's body for the sandbox called `name`. It holds no variables: those come with each command.

    `init`: with the engine's init as its first process. `checked`: the image has a health check: it is left out."""
    host: dict[str, Any] = {"NetworkMode": "host", "AutoRemove": False, "RestartPolicy": {"Name": "no"}}
    if init:
        host["Init"] = True
    if config.cpu is not None:
        host["NanoCpus"] = round(config.cpu * 1e9)
    if config.memory is not None:
        # No swap beside it, so that the limit is one.
        host["Memory"] = host["MemorySwap"] = round(config.memory * _GB)
    _, gpus = parse_gpu(config.gpu)
    if gpus:
        host["DeviceRequests"] = [{"Driver": "", "Count": gpus, "Capabilities": [["gpu"]]}]
    body = {
        "Image": config.image,
        "Entrypoint": ["/bin/sh"],
        "Cmd": ["-c", _IDLE, "vf-idle", str(config.timeout or 0)],
        "WorkingDir": config.workdir,
        "Labels": {**config.labels, **mark(name, given)},
        "StopSignal": "SIGTERM",
        # Its programs had their time before it is removed; some engines give it to containers once more.
        "StopTimeout": 0,
        "HostConfig": host,
    }
    if checked:
        body["Healthcheck"] = {"Test": ["NONE"]}
    return body
