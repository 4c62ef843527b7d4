"""Import of Ray, with settings that make its servers listen locally and require tokens."""

import os
import secrets
import socket
from functools import cache
from types import ModuleType

from fedsim.common.errors import ScenarioError

# oldest version of Ray that is supported: the first that authenticates by tokens
_OLDEST_VERSION = (2, 52)
_CONNECT_S = 5.0  # timeout of the connection to a cluster's port (s)

ALL_INTERFACES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable that Ray reads when it is imported.

If it is 0, Ray's servers listen only on 127.0.0.1. On Linux the default is 1.
"""

ADDRESS = "RAY_ADDRESS"
AUTH_MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"


@cache
def make_token() -> str:
    """Return the secret token that clients must show to the Ray servers started by this process.

    The token is drawn at the first call and then stays the same, as Ray reads it once per process.
    """
    return secrets.token_hex(32)


def require_client_token() -> None:
    """Make the Ray servers that this process starts later require a token from their clients.

    The token and Ray's mode of authentication are set as environment variables, which Ray reads.
    """
    os.environ[TOKEN] = make_token()
    try:
        from ray._raylet import Config
    except ImportError:
        # A Ray without this class is a later version, which asks for tokens if no mode is set.
        os.environ.pop(AUTH_MODE, None)
        return
    os.environ[AUTH_MODE] = "token"
    Config.initialize("")  # Ray may have read its settings when it was imported


def load_ray(address: str | None) -> ModuleType:
    """Import Ray, and return its module.

    Args:
        address: address of the cluster to join. None if Ray is started here; Ray's servers then
            listen only on this machine, unless the user has set the environment variable that
            ``ALL_INTERFACES`` names.

    Raises:
        ScenarioError: Ray is missing or too old.
    """
    if address is None:
        os.environ.setdefault(ALL_INTERFACES, "0")
    try:
        import ray
    except ImportError as error:
        raise ScenarioError(
            f"--executor is 'ray', but Ray cannot be imported ({error}); pip install "
            f"'ray>={_oldest_version()}' 'cloudpickle>=3' installs it"
        ) from error
    major, minor = ray.__version__.split(".")[:2]
    if (int(major), int(minor)) < _OLDEST_VERSION:
        raise ScenarioError(
            f"--executor is 'ray', but the Ray that is installed is {ray.__version__}; "
            f"{_oldest_version()} or later is needed"
        )
    module: ModuleType = ray
    return module


def _oldest_version() -> str:
    return ".".join(map(str, _OLDEST_VERSION))


def require_server(address: str) -> None:
    """Raise ``ScenarioError`` if a Ray cluster's address is malformed, or no server listens there.

    Without this check Ray would try to connect again and again.

    Args:
        address: HOST:PORT of a Ray cluster, or ``auto``. For ``auto`` Ray uses the address in the
            environment variable ``RAY_ADDRESS``; if it is not set, nothing is checked. The value
            ``local`` of this variable is refused, because Ray would start servers that listen
            beyond the loopback interface.
    """
    name = "--address"
    if address == "auto":
        name = ADDRESS
        address = os.environ.get(ADDRESS) or "auto"
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or "://" in host:
        raise ScenarioError(f"{name} is {address!r}; it must be 'auto' or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ScenarioError(
            f"{name} is {address!r}, where no Ray cluster answers: {error}"
        ) from error


def brief(error: BaseException) -> str:
    """Return the type and the first line of an error, as a text."""
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"
