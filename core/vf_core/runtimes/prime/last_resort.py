"""Ending a sandbox synchronously, when no event loop runs any more: at interpreter exit. Thread-safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from vf_core.errors import SandboxError
from vf_core.runtimes import labels
from vf_core.runtimes.box import Answer
from vf_core.runtimes.prime import sdk
from vf_core.runtimes.prime.sdk import TERMINAL, CallError

CALL: Final = 10.0
_PER_PAGE: Final = 100
_PAGES: Final = 50


@dataclass(frozen=True, slots=True)
class Access:
    """Where and as whom a sandbox was made: what the environment says at exit may be something else."""

    base_url: str
    api_key: str = field(repr=False)
    team: str | None


@lru_cache(maxsize=8)
def _api(access: Access) -> Any:
    api = sdk.load().APIClient(api_key=access.api_key)
    api.base_url = access.base_url
    return api


def end(access: Access, name: str, ids: Sequence[str]) -> Answer:
    """Delete by id, else by name, and look. Raises `SandboxError` when that could not be done in time."""
    try:
        found = list(ids) or _find(access, name)
        for id in found:
            try:
                _ask(access, "DELETE", f"/sandbox/{id}")
            except CallError as e:
                if e.kind != "missing":
                    raise
        answers = [_look(access, id) for id in found]
    except CallError as e:
        raise SandboxError(str(e), hint=e.hint) from None
    if not found:
        # A create call may have been cut off a moment ago.
        raise SandboxError(f"Prime lists no sandbox {name} yet; one may still appear")
    alive = [answer for answer in answers if not answer.gone]
    return alive[0] if alive else Answer(True, "; ".join(answer.text for answer in answers))


def _look(access: Access, id: str) -> Answer:
    try:
        status = str(_ask(access, "GET", f"/sandbox/{id}").get("status") or "")
    except CallError as e:
        if e.kind == "missing":
            return Answer(True, f"Prime answers 404: there is no sandbox {id}")
        raise
    return Answer(status in TERMINAL, f"Prime says that {id} is {status or 'of no known status'}")


def _find(access: Access, name: str) -> list[str]:
    found: list[str] = []
    for page in range(1, _PAGES):
        params = {"page": page, "per_page": _PER_PAGE, "labels": [labels.MARK], "is_active": True}
        team = {"team_id": access.team} if access.team else {}
        answer = _ask(access, "GET", "/sandbox", {**params, **team})
        rows = [row for row in answer.get("sandboxes") or () if isinstance(row, dict)]
        found += [str(row["id"]) for row in rows if row.get("name") == name and row.get("id")]
        if not answer.get("hasNext") or not rows:
            break
    return found


def _ask(access: Access, method: str, endpoint: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        answer = _api(access).request(method, endpoint, params=params, timeout=CALL)
    except Exception as e:
        raise sdk.understand(e) from None
    return answer if isinstance(answer, dict) else {}
