"""Random quantities of devices, drawn again from the distributions and the seed of a scenario."""

import math
from types import GenericAlias

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.common.streams import Streams
from fedsim.lab.audit.evidence import TomlTable
from fedsim.lab.audit.frames import read_quantity


def redraw(scenario: TomlTable, section: TomlTable | None, purpose: str, unit: object) -> Floats:
    """Repeat the random draw of a quantity of every device, by the scenario's seed.

    The checks compare the values with those in the table of devices.

    Args:
        scenario: the scenario.
        section: distribution of the quantity; None or empty if the scenario has none.
        purpose: name of the random stream from which the run draws it, such as ``world/speed``.
        unit: type of the quantity, which parses texts such as ``"2 MB"``.

    Returns:
        Values in the base unit, NaN if the scenario does not define them; float64 [devices].
    """
    count = scenario["population"]["devices"]
    generator = Streams(scenario["seed"]).generator(purpose)
    if not section:
        return np.full(count, np.nan)
    list_of_unit = GenericAlias(list, (unit,))  # the type ``list[unit]``
    match section["kind"]:
        case "constant":
            return np.full(count, read_quantity(unit, section["value"]), dtype=np.float64)
        case "uniform":
            low = read_quantity(unit, section["low"])
            high = read_quantity(unit, section["high"])
            return np.asarray(generator.uniform(low, high, count))
        case "lognormal":
            normal = generator.standard_normal(count)
            median = read_quantity(unit, section["median"])
            return np.asarray(median * np.exp(normal * math.log(section["spread"])))
        case "choice":
            shares = section.get("shares")
            weights = np.array(shares) / sum(shares) if shares else None
            values = np.array(read_quantity(list_of_unit, section["values"]))
            return np.asarray(generator.choice(values, count, p=weights))
        case "list":
            return np.array(read_quantity(list_of_unit, section["values"]), dtype=np.float64)
    return np.full(count, np.nan)  # such as ``file``, whose values the folder does not have
