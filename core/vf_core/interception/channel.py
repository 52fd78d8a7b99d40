"""What tool servers of ours share with the engine: their rollout's state and its task, by a secret of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from vf_core.interception.wire import Headers, Refusal, Request, Responder

if TYPE_CHECKING:
    from vf_core.interception.session import Session

STATE_PATH = "/rollout/state"
TASK_PATH = "/rollout/task"
STATE_LIMIT = 8 * 1024 * 1024
"""Bytes of a state, as JSON."""

_METHODS = {STATE_PATH: (b"GET", b"PUT"), TASK_PATH: (b"GET",)}
_JSON: Headers = ((b"content-type", b"application/json"),)


class Channel:
    """One rollout's channel. A state is replaced whole: of two writers at once, the last one's stands."""

    def __init__(self, session: Session, task: Any) -> None:
        self._session = session
        self._task = task

    def admit(self, request: Request) -> None:
        """Judge a request by its head. Raises `Refusal`."""
        methods = _METHODS.get(request.path)
        if methods is None:
            raise Refusal(404, f"no such endpoint: there are {STATE_PATH} and {TASK_PATH}")
        if request.method not in methods:
            allowed = b", ".join(methods)
            raise Refusal(405, f"{request.path} takes {allowed.decode()}", headers=((b"allow", allowed),))
        request.limit = STATE_LIMIT

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer an admitted request. Raises `Refusal`: 422 for a state that is not of the rollout's class."""
        if self._session.closed:
            raise Refusal(401, "the rollout is over", kind="authentication_error")
        if request.path == TASK_PATH:
            responder.respond(200, _JSON, self._told_task())
        elif request.method == b"GET":
            state = self._session.trace.state
            responder.respond(200, _JSON, type(state).__pydantic_serializer__.to_json(state))
        else:
            self._replace(request.body)
            responder.respond(204, (), b"")

    def _told_task(self) -> bytes:
        task = self._task if self._task is not None else self._session.trace.task.data
        cls = type(task)
        return json.dumps(
            {"cls": f"{cls.__module__}:{cls.__qualname__}", "task": task.model_dump(mode="json")}
        ).encode()

    def _replace(self, body: bytes) -> None:
        trace = self._session.trace
        kind = type(trace.state)
        try:
            trace.state = kind.model_validate_json(body)
        except (ValidationError, ValueError) as e:
            raise Refusal(422, f"not a {kind.__name__}: {_short(e)}") from None


def _short(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)[:500]
    return "; ".join(
        f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()[:5]
    )[:500]
