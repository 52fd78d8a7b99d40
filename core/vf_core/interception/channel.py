"""What tool servers of ours share with the engine: their rollout's state and its task, by a secret of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from vf_core.interception.wire import JSON, Refusal, Request, Responder

if TYPE_CHECKING:
    from vf_core.interception.session import Session

STATE_PATH = "/rollout/state"
TASK_PATH = "/rollout/task"
STATE_LIMIT = 8 * 1024 * 1024
"""Bytes of a state, as JSON."""

_METHODS = {STATE_PATH: (b"GET", b"PUT", b"PATCH"), TASK_PATH: (b"GET",)}


class Channel:
    """One rollout's channel. PUT replaces the state whole, PATCH the fields that it names: of two writers at once, in
    whatever servers, the last one's stands for each field."""

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
            responder.respond(200, JSON, self._told_task())
        elif request.method == b"GET":
            responder.respond(200, JSON, self._told_state())
        else:
            self._replace(request.body, merged=request.method == b"PATCH")
            responder.respond(204, (), b"")

    def _told_state(self) -> bytes:
        state = self._session.trace.state
        told: bytes = type(state).__pydantic_serializer__.to_json(state)
        return told

    def _told_task(self) -> bytes:
        task = self._task if self._task is not None else self._session.trace.task.data
        cls = type(task)
        return json.dumps(
            {"cls": f"{cls.__module__}:{cls.__qualname__}", "task": task.model_dump(mode="json")}
        ).encode()

    def _replace(self, body: bytes, *, merged: bool) -> None:
        trace = self._session.trace
        kind = type(trace.state)
        try:
            if merged and isinstance(changed := json.loads(body), dict):
                body = json.dumps({**json.loads(self._told_state()), **changed}).encode()
                if len(body) > STATE_LIMIT:
                    raise Refusal(413, f"the state is larger than {STATE_LIMIT >> 20} MiB")
            trace.state = kind.model_validate_json(body)
        except (ValidationError, ValueError) as e:
            raise Refusal(422, f"not a {kind.__name__}: {_short(e)}") from None


def _short(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)[:500]
    return "; ".join(
        f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()[:5]
    )[:500]
