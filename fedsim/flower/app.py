"""A Flower app on the disk: what its ``pyproject.toml`` says, and where its two halves are."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fedsim.errors import ScenarioError, SimulationError, nearest, shown
from fedsim.files import flat, read_toml
from fedsim.flower.turns import place_in

Value = bool | int | float | str
_FILE = "pyproject.toml"


@dataclass(frozen=True)
class App:
    """A Flower app."""

    folder: Path
    server: str  # ``module:attribute``
    client: str
    config: dict[str, Value]  # its run configuration, with the changes of the scenario

    def load(self, half: str) -> Any:
        """Import the ServerApp or the ClientApp (``half``: ``server`` or ``client``); its folder is on ``sys.path``.

        Raises ``SimulationError`` if it cannot be imported, or is something else.
        """
        from flwr.clientapp import ClientApp
        from flwr.serverapp import ServerApp

        path, called, wanted = getattr(self, half), f"{half}app", ServerApp if half == "server" else ClientApp
        module, _, names = path.partition(":")
        try:
            found: Any = import_module(module)
            for name in names.split("."):
                found = getattr(found, name)
        except Exception as error:
            place = place_in(error, self.folder)
            raise SimulationError(f"the {called} {path!r} cannot be loaded: {type(error).__name__}: {error}{place}") from error
        if not isinstance(found, wanted):
            raise SimulationError(f"the {called} {path!r} is a {type(found).__name__}; it must be a {wanted.__name__}")
        return found


def read_app(place: str, run_config: Mapping[str, Any]) -> App:
    """The app in the folder ``place``; ``run_config`` changes its ``[tool.flwr.app.config]``, as ``flwr run`` does.

    Raises ``ScenarioError`` if there is no such app, or it knows no such key.
    """
    folder = Path(place).expanduser().resolve()
    try:
        written = read_toml(folder / _FILE)
    except OSError:
        what = "give the folder of a Flower app, from the working directory on or from the root"
        raise ScenarioError(f"strategy.app is {place!r}, but there is no {str(folder / _FILE)!r}; {what}") from None
    except ValueError as error:
        raise ScenarioError(f"strategy.app: {str(folder / _FILE)!r} is not valid TOML: {error}") from None
    for key in ("tool", "flwr", "app"):
        written = written.get(key, {}) if isinstance(written, dict) else {}
    components = written.get("components", {})
    for name in ("serverapp", "clientapp"):
        if not (isinstance(components.get(name), str) and ":" in components[name]):
            key = f"tool.flwr.app.components.{name}"
            raise ScenarioError(f"strategy.app is {place!r}, whose {_FILE} does not say {key} = 'module:attribute'")
        module = components[name].partition(":")[0].replace(".", "/")
        if not any((folder / f"{module}{end}").is_file() for end in (".py", "/__init__.py")):
            raise ScenarioError(f"strategy.app: {name} is {components[name]!r}, but there is no file {module}.py in {place!r}")
    config, changes = flat(written.get("config", {})), flat(run_config)
    for key, value in changes.items():
        if key not in config:
            known = f"{', '.join(config) or 'none'}{nearest(key, config)}"
            raise ScenarioError(f"strategy.run_config has the key {key!r}, which the app lacks; it has {known}")
        if not isinstance(value, Value):
            raise ScenarioError(f"strategy.run_config.{key} is {shown(value)}; allowed are numbers, texts, true and false")
    return App(folder, components["serverapp"], components["clientapp"], config | changes)
