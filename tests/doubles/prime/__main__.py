"""The double as a process: prints its URL as JSON, then answers one request a line, until its input ends."""

from __future__ import annotations

import json
import sys
from typing import Any

from doubles.prime.server import PrimeDouble


def answer(double: PrimeDouble, request: dict[str, Any]) -> Any:
    what = request.pop("do")
    if what == "live":
        return double.live()
    if what == "created":
        return double.created
    if what == "bystander":
        return double.bystander(**request)
    if what == "expire":
        return double.expire(**request)
    if what == "revoke":
        return double.revoke()
    if what == "expire_tokens":
        return double.expire_tokens()
    if what == "fault":
        return double.faults.add(request.pop("op"), request.pop("action"), **request)
    if what == "calm":
        return double.faults.clear()
    if what == "count":
        return double.faults.count(request["op"])
    raise ValueError(f"{what}?")


def main() -> None:
    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    with PrimeDouble(**options) as double:
        print(json.dumps({"url": double.url}), flush=True)
        for line in sys.stdin:
            print(json.dumps({"answer": answer(double, json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
