"""HTTP and gRPC over one service: in the server process, or in a front-end process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ridgeline.serve.access import Access, Asked
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.grpc.server import GrpcServer
from ridgeline.serve.http.app import HttpApp
from ridgeline.serve.http.server import HttpServer, tls_context
from ridgeline.serve.service import ADMIN, Service
from ridgeline.serve.settings import Settings


@dataclass(frozen=True)
class Ports:
    """Where to listen; None for a protocol that is off, 0 for any free port."""

    http: int | None
    grpc: int | None


class FrontEnd:
    def __init__(
        self, service: Service, settings: Settings, access: Access, *, ports: Ports, shares_ports: bool
    ) -> None:
        has_admin = settings.mode == "explicit" and settings.admin_port is None
        self.app = HttpApp(service, settings, access, admin=has_admin)
        self._http: HttpServer | None = None
        if ports.http is not None:
            tls = None if settings.tls is None else tls_context(settings.tls)
            self._http = HttpServer(
                self.app, settings, settings.host, ports.http, reuse_port=shares_ports, ssl=tls
            )
        self._grpc: GrpcServer | None = None
        if ports.grpc is not None:
            check = access.check if has_admin else _without_admin(access)
            own = replace(settings, grpc_port=ports.grpc)
            self._grpc = GrpcServer(service, own, check, reuse_port=shares_ports)

    async def start(self) -> Ports:
        """The ports that were taken."""
        http = await self._http.start() if self._http is not None else None
        grpc = await self._grpc.start() if self._grpc is not None else None
        return Ports(http, grpc)

    def set_serving(self, *, is_serving: bool) -> None:
        """Not serving: probes are told so, and every answer is its connection's last."""
        if self._grpc is not None:
            self._grpc.set_serving(is_serving)
        if self._http is not None and not is_serving:
            self._http.drain()

    async def close(self, seconds: float) -> None:
        """No new connections; what is under way has so long to end."""
        stops = []
        if self._http is not None:
            stops.append(self._http.stop(seconds))
        if self._grpc is not None:
            stops.append(self._grpc.stop(seconds))
        await asyncio.gather(*stops)


def _without_admin(access: Access) -> Callable[[Mapping[str, str], Asked], None]:
    def check(metadata: Mapping[str, str], verb: Asked) -> None:
        if verb in ADMIN:
            raise RequestError(Kind.FORBIDDEN, "this server takes no admin calls here")
        access.check(metadata, verb)

    return check
