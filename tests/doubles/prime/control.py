"""The control plane of the double: REST."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from doubles.prime.state import Sandbox, State

API = "/api/v1"
MAX_MINUTES = 1440


class Control:
    """Answers for a `State`; `url` is the server's own address."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.url = ""

    def routes(self) -> list[Route]:
        one = f"{API}/sandbox/{{id}}"
        return [
            Route(f"{API}/sandbox", self.create, methods=["POST"]),
            Route(f"{API}/sandbox", self.page, methods=["GET"]),
            Route(f"{API}/sandbox", self.bulk_delete, methods=["DELETE"]),
            Route(f"{API}/sandbox/status:batchGet", self.statuses, methods=["POST"]),
            Route(one, self.get, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/auth", self.auth, methods=["POST"]),
            Route(f"{one}/error-context", self.why, methods=["GET"]),
        ]

    @staticmethod
    def _missing(id: str) -> JSONResponse:
        return JSONResponse({"detail": f"Sandbox {id} not found"}, 404)

    async def create(self, request: Request) -> JSONResponse:
        wish = await request.json()
        if wish.get("vm") and wish.get("idle_timeout_minutes") is not None:
            return JSONResponse({"detail": "idle_timeout_minutes is not supported for VM sandboxes"}, 422)
        if wish["timeout_minutes"] > MAX_MINUTES:
            return JSONResponse({"detail": f"timeout_minutes must be at most {MAX_MINUTES}"}, 400)
        sandbox = self.state.add(wish)
        return JSONResponse({**sandbox.row, "gatewayAuth": self.state.access(sandbox, self.url)}, 201)

    async def page(self, request: Request) -> JSONResponse:
        query = request.query_params
        page, size = int(query.get("page", 1)), int(query.get("per_page", 50))
        active = query.get("is_active") == "true"
        rows = self.state.listed(set(query.getlist("labels")), active=active, team=query.get("team_id"))
        cut = rows[(page - 1) * size : page * size]
        return JSONResponse(
            {
                "sandboxes": [sandbox.row for sandbox in cut],
                "total": len(rows),
                "page": page,
                "perPage": size,
                "hasNext": page * size < len(rows),
            }
        )

    async def get(self, request: Request) -> JSONResponse:
        id = request.path_params["id"]
        sandbox = self.state.look(id)
        return JSONResponse(sandbox.row) if sandbox else self._missing(id)

    async def statuses(self, request: Request) -> JSONResponse:
        found: list[dict[str, Any]] = []
        errors = []
        for id in (await request.json())["sandbox_ids"][:100]:
            sandbox = self.state.look(id)
            if sandbox is None:
                errors.append({"sandbox_id": id, "code": "NOT_FOUND", "message": "not found"})
                continue
            row = sandbox.row
            found.append(
                {
                    "sandbox_id": id,
                    "status": row["status"],
                    "error_type": row.get("errorType"),
                    "error_message": row.get("errorMessage"),
                    "pending_image_build_id": row["pendingImageBuildId"],
                }
            )
        return JSONResponse({"statuses": found, "errors": errors})

    async def delete(self, request: Request) -> JSONResponse:
        id = request.path_params["id"]
        sandbox = self.state.find(id)
        if sandbox is None or sandbox.gone_at is not None:
            return self._missing(id)
        await self.state.destroy(sandbox)
        return JSONResponse({"message": "deleted"})

    async def bulk_delete(self, request: Request) -> JSONResponse:
        wish = await request.json()
        ids, labels = list(wish.get("sandbox_ids") or ()), set(wish.get("labels") or ())
        hit = [
            sandbox
            for sandbox in self.state.listed(
                labels if not ids else set(), active=True, team=wish.get("team_id")
            )
            if not ids or sandbox.id in ids
        ]
        if self.state.faults.take("bulk_delete", ("partial",)):
            hit = hit[: len(hit) // 2]
        done = [await self._destroyed(sandbox) for sandbox in hit]
        failed = [{"sandbox_id": id, "error": "not deleted"} for id in ids if id not in done]
        return JSONResponse({"succeeded": done, "failed": failed, "message": "ok"})

    async def _destroyed(self, sandbox: Sandbox) -> str:
        await self.state.destroy(sandbox)
        return sandbox.id

    async def auth(self, request: Request) -> JSONResponse:
        id = request.path_params["id"]
        sandbox = self.state.find(id)
        return JSONResponse(self.state.access(sandbox, self.url)) if sandbox else self._missing(id)

    async def why(self, request: Request) -> JSONResponse:
        sandbox = self.state.find(request.path_params["id"])
        row = sandbox.row if sandbox else {"status": "TERMINATED"}
        return JSONResponse({key: row.get(key) for key in ("status", "errorType", "errorMessage")})
