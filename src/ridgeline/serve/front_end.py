"""HTTP and gRPC over one service: in the server process, or in a front-end process of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ridgeline.serve.access import Access
from ridgeline.serve.grpc_server import GrpcServer
from ridgeline.serve.http_app import HttpApp
from ridgeline.serve.http_server import HttpServer, tls_context
from ridgeline.serve.service import Service
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
        self._grpc = (
            GrpcServer(
                service, asyncio.get_running_loop(), settings, access.check, port=ports.grpc,
                reuse_port=shares_ports, has_admin=has_admin,
            )
            if ports.grpc is not None
            else None
        )  # fmt: skip

    async def start(self) -> Ports:
        """The ports that were taken."""
        http = await self._http.start() if self._http is not None else None
        grpc = self._grpc.start() if self._grpc is not None else None
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
