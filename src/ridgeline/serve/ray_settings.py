"""What Ray takes of a server's settings, and what of the environment: known without importing it."""

from __future__ import annotations

from ridgeline.errors import OptionError
from ridgeline.serve.settings import Settings

# read once, when Ray is imported: for whoever starts the process
ENVIRONMENT = {
    # on Linux Ray otherwise listens at every address of the machine, even when it is given the loopback one
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # nothing about the cluster is sent to Ray's makers
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray Serve's lines stay in its files: one for each request otherwise
    "RAY_SERVE_LOG_TO_STDERR": "0",
}


def refuse_what_ray_lacks(settings: Settings) -> None:
    """Replicas listen at nothing of their own, and differ if one of them is told something."""
    given = {
        "--admin": settings.admin_port is not None,
        "--admin-keys": settings.keys.admin is not None,
        "--http-workers": settings.http_workers != 1,
        "--model-control explicit": settings.mode == "explicit",
        "--tls-cert": settings.tls is not None,
        "--grace": settings.grace_seconds > 0,
        "--log-json": settings.log_json,
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise OptionError(
            f"{' and '.join(wrong)} cannot be had under Ray",
            want="HTTP without TLS, models as the repository has them",
            help="replicas follow changes of the repository with --model-control poll",
        )
