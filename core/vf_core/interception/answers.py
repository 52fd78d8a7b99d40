"""Answers that were given, kept a while for a client that lost one and asks again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from vf_core.interception.wire import Headers, Responder

_KEPT = 4
_BYTES_KEPT = 256 * 1024
_RETRY_HEADERS = frozenset((b"x-stainless-retry-count", b"x-retry-count", b"retry-attempt"))
_KEY_HEADERS = frozenset((b"idempotency-key", b"x-idempotency-key"))


@dataclass(slots=True)
class Answer:
    """A whole answer. `delivered`: a client was there to its end; `key` is its request's idempotency key."""

    status: int
    headers: Headers
    body: bytes
    stream: bool
    delivered: bool
    key: bytes

    def replay(self, responder: Responder) -> None:
        """Give it again."""
        if self.stream:
            responder.start(self.status, self.headers, self.body)
            responder.finish()
        else:
            responder.respond(self.status, self.headers, self.body)
        self.delivered = True


class Answers:
    """The latest answers of a rollout by the digest of their request; the last one always, a few more while small."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Answer] = OrderedDict()

    def find(self, digest: bytes, headers: Headers) -> Answer | None:
        """The answer that a request with `headers` lost.

        None for one that was never answered, and for one that is sent again on purpose: by a client that got its
        answer and says nothing of a retry.
        """
        answer = self._kept.get(digest)
        if answer is None or not answer.delivered:
            return answer
        again = any(name in _RETRY_HEADERS and value.strip() not in {b"", b"0"} for name, value in headers)
        key = operation_key(headers)
        return answer if again or (key and key == answer.key) else None

    def keep(self, digest: bytes, answer: Answer) -> None:
        """Remember `answer`, and forget what is too old or too much."""
        kept = self._kept
        kept[digest] = answer
        kept.move_to_end(digest)
        size = sum(len(known.body) for known in kept.values())
        while len(kept) > _KEPT or (len(kept) > 1 and size > _BYTES_KEPT):
            size -= len(kept.popitem(last=False)[1].body)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()


def operation_key(headers: Headers) -> bytes:
    """The key by which the client names its operation; empty without one."""
    return next((value for name, value in headers if name in _KEY_HEADERS), b"")
