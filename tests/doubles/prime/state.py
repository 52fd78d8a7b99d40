"""The sandboxes of the double."""

from __future__ import annotations

import secrets
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from doubles.faults import Faults
from doubles.prime.guest import Process, Reaper, Root

ACTIVE = ("PENDING", "PROVISIONING", "RUNNING", "PAUSED")


@dataclass
class Options:
    """`boot_polls`: looks at a new sandbox before it runs; -1: it stays PENDING. `build_polls`: looks while its image
    is built, before that. `after_delete`: "terminated": it can still be looked at; "gone": 404. `dedupe`: repeated
    create calls with one key make one sandbox. `any_label`: a list takes any of the labels instead of all."""

    api_key: str = "test-key"
    boot_polls: int = 0
    build_polls: int = 0
    after_delete: str = "terminated"
    dedupe: bool = True
    any_label: bool = False


@dataclass(eq=False)
class Sandbox:
    """One sandbox. `ended`: no process of it is left, whatever its status says; `gone_at`: when it shows that."""

    row: dict[str, Any]
    root: Root
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    looks: int = 0
    ended: bool = False
    gone_at: float | None = None
    sessions: dict[str, Process] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def status(self) -> str:
        return str(self.row["status"])


def now() -> str:
    return datetime.now(UTC).isoformat()


class State:
    """What exists. Everything happens on the server's loop; `live` may be asked from any thread."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.faults = Faults()
        self.sandboxes: dict[str, Sandbox] = {}
        self.by_key: dict[str, str] = {}
        self.reaper = Reaper()
        self.created = 0
        self.api_key = options.api_key

    def add(self, request: Mapping[str, Any], status: str = "PENDING") -> Sandbox:
        """Make a sandbox; the same one for the same key."""
        known = self.sandboxes.get(self.by_key.get(request.get("idempotency_key") or "", ""))
        if known is not None and self.options.dedupe:
            return known
        id = secrets.token_hex(6)
        row = {
            "id": id,
            "name": request["name"],
            "dockerImage": request.get("docker_image", ""),
            "cpuCores": request.get("cpu_cores", 1),
            "memoryGB": request.get("memory_gb", 1),
            "diskSizeGB": request.get("disk_size_gb", 5),
            "diskMountPath": "/sandbox-workspace",
            "gpuCount": request.get("gpu_count", 0),
            "gpuType": request.get("gpu_type"),
            "vm": request.get("vm", False),
            "region": request.get("region"),
            "status": status,
            "labels": list(request.get("labels") or ()),
            "timeoutMinutes": request.get("timeout_minutes", 60),
            "idleTimeoutMinutes": request.get("idle_timeout_minutes"),
            "environmentVars": request.get("environment_vars"),
            "teamId": request.get("team_id"),
            "pendingImageBuildId": "build-1" if self.options.build_polls else None,
            "createdAt": now(),
            "updatedAt": now(),
        }
        sandbox = self.sandboxes[id] = Sandbox(row, Root(id))
        self.created += 1
        if key := request.get("idempotency_key"):
            self.by_key[key] = id
        return sandbox

    def find(self, id: str) -> Sandbox | None:
        """The sandbox if the API still shows it; one whose end lingers keeps its status until its time is up."""
        sandbox = self.sandboxes.get(id)
        if sandbox is not None and sandbox.gone_at is not None and time.monotonic() >= sandbox.gone_at:
            if self.options.after_delete == "gone":
                return None
            if sandbox.status in ACTIVE:
                sandbox.row["status"] = "TERMINATED"
        return sandbox

    def look(self, id: str) -> Sandbox | None:
        """As `find`; each look brings a new sandbox nearer to running."""
        sandbox = self.find(id)
        if sandbox is not None and sandbox.status == "PENDING":
            sandbox.looks += 1
            build, boot = self.options.build_polls, self.options.boot_polls
            if sandbox.looks > build:
                sandbox.row["pendingImageBuildId"] = None
                if boot >= 0 and sandbox.looks > build + boot:
                    sandbox.row["status"] = "RUNNING"
        return sandbox

    def listed(self, labels: set[str], *, active: bool, team: str | None) -> list[Sandbox]:
        """What a list shows, in the order of creation."""
        found = [sandbox for sandbox in map(self.find, list(self.sandboxes)) if sandbox is not None]
        return [
            sandbox
            for sandbox in found
            if self._fits(set(sandbox.row["labels"]), labels)
            and (not active or sandbox.status not in ("TERMINATED", "TIMEOUT", "ERROR"))
            and team in (None, sandbox.row["teamId"])
        ]

    def _fits(self, has: set[str], wanted: set[str]) -> bool:
        if self.options.any_label:
            return not wanted or bool(wanted & has)
        return wanted <= has

    async def destroy(self, sandbox: Sandbox) -> None:
        """End it with all its processes."""
        linger = self.faults.take(f"linger {sandbox.id} {sandbox.row['name']}", ("linger",))
        sandbox.gone_at = time.monotonic() + (linger.seconds if linger else 0)
        await self._stop(sandbox)

    async def expire(self, sandbox: Sandbox, status: str, error: str, message: str) -> None:
        """It ends from the platform's side: lifetime, idleness, OOM_KILLED, …"""
        sandbox.row.update(status=status, errorType=error, errorMessage=message)
        await self._stop(sandbox)

    async def _stop(self, sandbox: Sandbox) -> None:
        sandbox.ended = True
        await self.reaper.reap(sandbox.id)
        shutil.rmtree(sandbox.root.path, ignore_errors=True)

    def live(self) -> list[dict[str, Any]]:
        """What has not ended, by the double's own knowledge."""
        return [
            {key: sandbox.row[key] for key in ("id", "name", "labels", "status")}
            for sandbox in list(self.sandboxes.values())
            if not sandbox.ended
        ]

    def access(self, sandbox: Sandbox, url: str) -> dict[str, str]:
        """What the gateway wants to see."""
        return {
            "gateway_url": f"{url}/gw",
            "user_ns": "ns",
            "job_id": sandbox.id,
            "token": sandbox.token,
            "expires_at": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        }
