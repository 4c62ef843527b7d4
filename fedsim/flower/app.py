"""Reader of a Flower app's ``pyproject.toml``: paths of ServerApp and ClientApp, run config."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal

from fedsim.common.errors import ScenarioError, SimulationError, nearest, show_value
from fedsim.common.files import flatten, read_toml
from fedsim.flower.app_errors import error_of_app

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

Value = bool | int | float | str
Half = Literal["server", "client"]

_FILE = "pyproject.toml"


@dataclass(frozen=True)
class App:
    """Flower app as read from its ``pyproject.toml``: folder, ServerApp, ClientApp, configuration.

    Attributes:
        folder: the app's folder.
        server: import path of the ServerApp, ``module:attribute``.
        client: import path of the ClientApp, ``module:attribute``.
        config: the run configuration with the scenario's changes, as dotted key -> value.
    """

    folder: Path
    server: str
    client: str
    config: dict[str, Value]

    def load(self, half: Half) -> "ServerApp | ClientApp":
        """Import the ServerApp or the ClientApp. The app's folder must be on ``sys.path``.

        Args:
            half: ``server`` for the ServerApp, ``client`` for the ClientApp.

        Returns:
            The ServerApp or the ClientApp.

        Raises:
            SimulationError: the object cannot be imported, or is no ServerApp or ClientApp.
        """
        from flwr.clientapp import ClientApp
        from flwr.serverapp import ServerApp

        if half == "server":
            path = self.server
            expected = ServerApp
        else:
            path = self.client
            expected = ClientApp
        label = f"the {half}app {path!r}"
        try:
            loaded = resolve_name(path)
        except (Exception, SystemExit) as error:
            raise SimulationError(
                f"{label} cannot be loaded: {error_of_app(error, self.folder)}"
            ) from error
        if not isinstance(loaded, expected):
            raise SimulationError(
                f"{label} is a {type(loaded).__name__}; it must be a {expected.__name__}"
            )
        return loaded


def read_app(path: str, run_config: Mapping[str, object]) -> App:
    """Read a Flower app from the ``pyproject.toml`` in its folder.

    Args:
        path: path of the app's folder.
        run_config: values that replace values of ``[tool.flwr.app.config]``, in tables or under
            dotted keys.

    Returns:
        The app, with the changed run configuration.

    Raises:
        ScenarioError: the folder has no valid app, or ``run_config`` has a key that the app lacks
            or a value that is no number, text or bool.
    """
    folder = Path(path).expanduser().resolve()
    tables = _app_tables(path, folder)
    components = tables.get("components", {})
    import_paths: dict[str, str] = {}
    for name in ("serverapp", "clientapp"):
        import_path = components.get(name)
        if not isinstance(import_path, str) or ":" not in import_path:
            key = f"tool.flwr.app.components.{name}"
            raise ScenarioError(
                f"strategy.app is {path!r}, whose {_FILE} does not say {key} = 'module:attribute'"
            )
        import_paths[name] = import_path
    config = flatten(tables.get("config", {}))
    changes = flatten(run_config)
    for key, value in changes.items():
        if key not in config:
            names = ", ".join(config) or "none"
            raise ScenarioError(
                f"strategy.run_config has the key {key!r}, which the app lacks; it has "
                f"{names}{nearest(key, config)}"
            )
        if not isinstance(value, Value):
            raise ScenarioError(
                f"strategy.run_config.{key} is {show_value(value)}; allowed are numbers, texts, "
                "true and false"
            )
    return App(folder, import_paths["serverapp"], import_paths["clientapp"], config | changes)


def _app_tables(path: str, folder: Path) -> dict[str, dict[str, object]]:
    """Read the table ``[tool.flwr.app]`` of an app's ``pyproject.toml``; empty if it is absent.

    Args:
        path: path of the app's folder as the scenario has it, for error messages.
        folder: absolute path of the app's folder.

    Raises:
        ScenarioError: the folder has no ``pyproject.toml``, or the file is not valid TOML.
    """
    file = folder / _FILE
    try:
        tables = read_toml(file)
    except OSError:
        hint = "give the folder of a Flower app, from the working directory on or from the root"
        raise ScenarioError(
            f"strategy.app is {path!r}, but there is no {str(file)!r}; {hint}"
        ) from None
    except ValueError as error:
        raise ScenarioError(f"strategy.app: {str(file)!r} is not valid TOML: {error}") from None
    for key in ("tool", "flwr", "app"):
        inner = tables.get(key)
        tables = inner if isinstance(inner, dict) else {}
    return tables
