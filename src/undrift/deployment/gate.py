"""The gate before a SuperLink, which only the calls of nodes pass.

Flower serves three interfaces on one port: nodes fetch and bring messages by /v1/fleet, and
whoever reaches /v1/control may register keys and run code without a password. So the SuperLink
listens on the loopback, and this program, which runs in Flower's environment, on the network.

python gate.py HOST PORT SUPERLINK CA CERTIFICATE KEY
"""

from __future__ import annotations

import ssl
import sys
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ALLOWED = "/v1/fleet/"
LARGEST = 2**26  # bytes of a request; Flower sends arrays in pieces of five megabytes
DROPPED = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}


def application(superlink: str, context: ssl.SSLContext) -> Starlette:
    """Return the application that hands the calls of nodes to the SuperLink."""
    client = httpx.AsyncClient(base_url=f"https://{superlink}", verify=context, timeout=120.0)

    async def hand_on(request: Request) -> Response:
        path = request.scope["path"]
        if not path.startswith(ALLOWED) or ".." in path:
            return Response("Only calls of nodes pass.", status_code=403)
        body = bytearray()  # Bytes would be copied again with every part.
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                return Response("The request is too large.", status_code=413)
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in DROPPED]
        try:
            reply = await client.post(path, content=bytes(body), headers=headers)
        except httpx.TransportError:
            return Response("The SuperLink does not answer.", status_code=503)
        kept = {k: v for k, v in reply.headers.items() if k.lower() not in DROPPED}
        kept.pop("content-encoding", None)
        return Response(reply.content, status_code=reply.status_code, headers=kept)

    routes = [Route("/{rest:path}", hand_on, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])]
    return Starlette(routes=routes)


def main() -> None:
    """Serve until the process is ended."""
    host, port, superlink, ca, certificate, key = sys.argv[1:]
    options: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key}
    uvicorn.run(
        application(superlink, ssl.create_default_context(cafile=ca)),
        host=host,
        port=int(port),
        log_level="warning",
        **options,
    )


if __name__ == "__main__":
    main()
