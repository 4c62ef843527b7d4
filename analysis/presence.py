"""When devices were there and could be reached, read off a run into tables."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsim.records.folder import AVAILABILITY, DEVICES
from fedsim.records.reading import RunFolder


@dataclass(frozen=True)
class Presence:
    """Stretches of simulated time, as tables with ``device``, ``start`` and ``end`` (s), in order of devices and times.

    Attributes:
        there: from a device's arrival to its departure, or to the run's end.
        away: while it was there and could not be reached: by its availability, or because it was switched off.
        known: of which devices ``away`` tells, ascending; none where the folder is of an older version.
    """

    there: pd.DataFrame
    away: pd.DataFrame
    known: NDArray[np.int64]


def read_presence(run: RunFolder, end: float) -> Presence:
    """Read it, for a run whose last record is at ``end`` (s).

    Raises:
        RunFolderError: a table is missing or damaged.
    """
    population = run.table(DEVICES).select(["device", "arrival", "departure"]).to_pandas()
    there = population.rename(columns={"arrival": "start", "departure": "end"})
    there = _cut(there, there["start"], there["end"].clip(upper=end))
    if not run.has(AVAILABILITY):
        nothing = pd.DataFrame({"device": [], "start": [], "end": []}).astype({"device": int})
        return Presence(there, nothing, np.zeros(0, dtype=np.int64))
    table = run.table(AVAILABILITY).to_pandas().rename(columns={"time": "start"})
    table["end"] = _until_next(table, end)
    off = pd.concat([table[~table["on"]], _switched_off(run, end)])[["device", "start", "end"]]
    own = population.set_index("device").loc[off["device"]]
    off = _cut(off, np.maximum(off["start"], own["arrival"].to_numpy()), np.minimum(off["end"], own["departure"].to_numpy()))
    return Presence(there, off.sort_values(["device", "start"], kind="stable", ignore_index=True), table["device"].unique())


def _cut(table: pd.DataFrame, start: "pd.Series[float]", end: "pd.Series[float]") -> pd.DataFrame:
    """The stretches with other limits; those of which nothing is left are left out."""
    cut = table.assign(start=start, end=end)
    return cut[cut["end"] > cut["start"]].reset_index(drop=True)


def _until_next(rows: pd.DataFrame, end: float) -> "pd.Series[float]":
    """The start of the next row of the same device, or the end."""
    return rows["start"].shift(-1).where(rows["device"].shift(-1) == rows["device"], end)


def _switched_off(run: RunFolder, end: float) -> pd.DataFrame:
    """What processes of the world did: each switching off, up to the device's next switching on."""
    columns = ["kind", "device", "time"]
    acts = pd.DataFrame(run.events_of(("switch-off", "switch-on"), columns), columns=["kind", "device", "start"])
    acts = acts.sort_values("device", kind="stable")
    acts["end"] = _until_next(acts, end)
    return acts[acts["kind"] == "switch-off"]
