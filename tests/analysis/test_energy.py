"""Energy by phase, and the levels of batteries: what is drawn is what the run says."""

import copy

import numpy as np
import pytest

from fedsim.analysis.energy import draw_batteries, draw_energy, read_levels
from fedsim.analysis.report.words import describe
from fedsim.analysis.style import NothingToDrawError, pixels
from fedsim.lab.compare.measures import measure
from fedsim.lab.reading.history import History
from fedsim.records.reading import RunFolder
from fedsim.testing import quiet_world, run

FEDAVG = {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"}
ENERGY = {"preset": "smartphone-4g", "carbon": "475 g/kWh", "server": {"idle": "20 W"}}
BATTERY = {"capacity": "60 J", "charge": "2 W", "charging": "always", "restart": 0.2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """With batteries, without, a run in which energy is not counted, and one in which nobody is ever flat."""
    folder = tmp_path_factory.mktemp("energy")
    sections = quiet_world(FEDAVG) | {"learning": "off"}
    worlds = {"batteries": ENERGY | {"battery": BATTERY}, "counted": ENERGY, "not": None}
    worlds["full"] = ENERGY | {"battery": BATTERY | {"capacity": "12 Wh"}}
    for name, energy in worlds.items():
        own = copy.deepcopy(sections) | ({} if energy is None else {"energy": energy})
        run(own, folder / name)
    return [RunFolder(folder / name) for name in worlds]


def test_bars_are_as_long_as_the_phases(folders: list[RunFolder]) -> None:
    figure = draw_energy(folders[:3])
    assert "(kJ)" in figure.axes[0].get_xlabel()
    for panel, phases in zip(figure.axes, (5, 7), strict=True):
        drawn = {(bar.get_gid(), round(bar.get_y() + 0.3)): bar.get_width() for bar in panel.patches}
        assert len(drawn) == 2 * phases  # the third run has no energy, and no bar
        for place, folder in enumerate(folders[:2]):
            for phase, joules in list(folder.summary["energy"]["by_phase"].items())[:phases]:
                assert drawn[phase, place] == pytest.approx(joules / 1000)


def test_levels_go_from_the_first_to_the_last_record(folders: list[RunFolder]) -> None:
    levels = read_levels(History(folders[0]))
    assert set(levels) == {event["device"] for event in folders[0].events if event["kind"] == "task-start"}
    for path in levels.values():
        times, joules = np.array(path).T
        assert (np.diff(times) >= 0).all()
        assert times[-1] == folders[0].summary["simulated_s"]
        assert joules.min() >= 0
        assert joules.max() <= 60
    panels = draw_batteries(folders[0]).axes
    assert len(panels) == 6
    for panel in panels:
        path = levels[int(panel.get_ylabel().split()[1])]
        assert panel.lines[0].get_ydata() == pytest.approx([100 * level / 60 for _, level in path])
        assert sum(len(line.get_xdata()) for line in panel.lines[1:]) == sum(
            level == 0 < before for (_, before), (_, level) in zip([[0, 1], *path], path, strict=False)
        )
    with pytest.raises(NothingToDrawError):
        draw_batteries(folders[1])
    figure = draw_batteries(folders[3])  # where nobody is flat panels have room
    pixels(figure, 40)  # lays it out; what has no room is a warning, and so an error
    assert all(panel.get_position().width > 0.7 for panel in figure.axes)


def test_words_and_measures(folders: list[RunFolder]) -> None:
    assert "Energy is counted as presets say (smartphone-4g), carbon too; batteries hold 60 J" in describe(folders[0].scenario)
    assert "Energy" not in describe(folders[2].scenario)
    values = measure(folders[0])
    stated = folders[0].summary["energy"]
    names = {"energy": "joules", "carbon": "grams", "wasted energy": "wasted"}
    assert {name: values[name] for name in names} == {name: stated[key] for name, key in names.items()}
    assert measure(folders[2])["energy"] is None
