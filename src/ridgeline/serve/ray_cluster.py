"""`ridge serve --ray`: a Ray cluster of this machine alone, at its loopback address, until a signal."""

from __future__ import annotations

import contextlib
import http.client
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from math import ceil, floor
from time import monotonic
from types import FrameType
from typing import Any

import ray
from ray import serve
from ray.serve.config import HTTPOptions

from ridgeline.errors import DeviceError, ModelError, OptionError
from ridgeline.serve.ray import DRAIN_MARGIN_S, FAULT, application
from ridgeline.serve.ray_settings import ENVIRONMENT, refuse_what_ray_lacks
from ridgeline.serve.settings import Settings

APPLICATION = "ridgeline"
LOOPBACK = "127.0.0.1"
DEPLOY_S = 1800.0  # a model that comes as ONNX is built first
POLL_S, PROBE_S = 0.2, 5.0
WATCH_S, ALONE_S = 2.0, 60.0
PARTS = 10_000  # that Ray divides a GPU into

Say = Callable[[str], None]


def run_on_ray(settings: Settings, *, replicas: int, say: Say, deploy_seconds: float = DEPLOY_S) -> int:
    """From the main thread. The exit status: 0 when a signal ended it, 1 when no replica was left.

    Whether replicas answered all that they had taken, Ray does not tell.
    """
    refuse_what_ray_lacks(settings)
    if replicas < 1:
        raise OptionError("--ray needs a number of replicas", got=str(replicas), want="at least 1")
    start_cluster(settings, num_cpus=replicas + 1)
    try:
        with _signals() as ended:
            gpus = _share_of_gpu(settings, replicas)
            app = application(settings, replicas=replicas, num_gpus=gpus)
            if deploy(app, settings, seconds=deploy_seconds, ended=ended):
                say(f"http     {settings.host}:{settings.http_port}")
                say("gRPC and metrics are off under Ray")
                say(f"ready: {replicas} replicas under Ray {ray.__version__}")
                is_alive = _watch(ended, say)
            else:
                is_alive = True
            say("draining" if is_alive else "no replica is left")
            _delete(settings)
        return 0 if is_alive else 1
    finally:
        ray.shutdown()


def start_cluster(settings: Settings, *, num_cpus: int, **options: Any) -> None:
    """Processes on the loopback address; Ray Serve's proxy listens where the settings say."""
    if not settings.http_port:
        raise OptionError("under Ray models are served over HTTP, at a port with a number")
    if not ip_address(ray.util.get_node_ip_address()).is_loopback:
        raise OptionError(
            "Ray would listen at all addresses of this machine",
            help=" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
            + " in the environment, before Python starts",
        )
    logging.getLogger("ray").setLevel(logging.WARNING)
    ray.init(
        num_cpus=num_cpus, include_dashboard=False, logging_level=logging.WARNING,
        _node_ip_address=LOOPBACK, **options,
    )  # fmt: skip
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    keep_alive = int(settings.limits.keep_alive_seconds)
    listening = HTTPOptions(host=settings.host, port=settings.http_port, keep_alive_timeout_s=keep_alive)
    serve.start(http_options=listening)


def deploy(
    app: serve.Application, settings: Settings, *, seconds: float, ended: threading.Event | None = None
) -> bool:
    """True when every replica has loaded its models and the proxy hands requests to them; False if `ended`
    came first."""
    ended = threading.Event() if ended is None else ended
    end = monotonic() + seconds
    target = serve.RunTarget(app, name=APPLICATION, route_prefix="/")
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    while not ended.wait(POLL_S):
        status, message = _status()
        if status == "DEPLOY_FAILED":
            raise ModelError(_reason(message), help="the same without --ray tells more")
        if status == "RUNNING" and _is_ready(settings):
            return True
        if monotonic() > end:
            raise ModelError(f"the replicas were not ready after {seconds:g} s", got=message or status)
    return False


def _watch(ended: threading.Event, say: Say) -> bool:
    """Until `ended`: True. False when no replica has run for a while: Ray starts others, if it can."""
    last, since = "RUNNING", monotonic()
    while not ended.wait(WATCH_S):
        status, message = _status()
        if status != last:
            say(f"Ray: {status.lower()}" + (f": {_reason(message)}" if message else ""))
            last = status
        if status == "RUNNING" or _replicas():
            since = monotonic()
        elif monotonic() - since > ALONE_S:
            return False
    return True


def _status() -> tuple[str, str]:
    found = serve.status().applications.get(APPLICATION)
    if found is None:
        return "DEPLOYING", ""
    told = [found.message, *(each.message for each in found.deployments.values())]
    return found.status.value, "\n".join(filter(None, told))


def _replicas() -> int:
    """Those that take requests."""
    found = serve.status().applications.get(APPLICATION)
    states = [] if found is None else [each.replica_states for each in found.deployments.values()]
    return sum(count for each in states for state, count in each.items() if str(state).endswith("RUNNING"))


def _reason(message: str) -> str:
    """The error of a replica's start; Ray wraps it into a traceback."""
    if FAULT in message:
        return FAULT + message.rpartition(FAULT)[2].partition("\n")[0]
    lines = [line for line in message.splitlines() if line.strip()]
    return f"the replicas cannot start: {lines[-1].strip() if lines else 'Ray gives no reason'}"


def _is_ready(settings: Settings) -> bool:
    connection = http.client.HTTPConnection(settings.host, settings.http_port, timeout=PROBE_S)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _share_of_gpu(settings: Settings, replicas: int) -> float:
    """Of one GPU, so that all replicas have a place. Without a share Ray hides the GPUs from a replica."""
    if settings.target.partition(":")[0] == "cpu":
        return 0.0
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if not gpus:
        raise DeviceError("Ray finds no GPU on this machine", want="one for --target cuda")
    return floor(PARTS / ceil(replicas / gpus)) / PARTS


def _delete(settings: Settings) -> None:
    """The proxy takes no more requests; replicas end when they have answered theirs."""
    end = monotonic() + settings.drain_seconds + DRAIN_MARGIN_S
    is_gone = False
    while not is_gone:
        try:
            serve.delete(APPLICATION)
            is_gone = True
        except TimeoutError:  # Ray waits a minute; the settings may say more
            if monotonic() > end:
                raise


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """The first signal drains; a second one ends it at once. Ray's own handlers know no drain."""
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        if ended.is_set():
            raise KeyboardInterrupt
        ended.set()

    before = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
