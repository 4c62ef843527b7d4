"""Power draw of devices, as published measurements say: each figure with its source and date; ``estimate`` where there is none.

Idle is what a device draws by being on, its screen dark; all else comes on top of that. Sources:

- Carroll and Heiser, "An analysis of power consumption in a smartphone", USENIX ATC 2010: idle, 0.27 W (Openmoko Freerunner).
- Huang et al., "A close examination of performance and power characteristics of 4G LTE networks", MobiSys 2012, the power model
  of their section 5 (HTC phones): a base while data move, joules by throughput each way, and a tail.
  Wi-Fi 132.86 mW, 137.01 and 283.17 mW a Mbit/s down and up, tail 119.3 mW for 238 ms;
  LTE 1,288.04 mW, 51.97 and 438.39 mW a Mbit/s, tail 1,060 mW for 11.576 s.
- Kim and Wu, "AutoFL", MICRO 2021: the CPUs of three phones on which they train draw at most 3.6 to 5.6 W.

What is a kind of device as well draws what ``device_kinds.toml`` says of it, with sources there.
"""

from fedsim.world.device_kinds import KIND_POWERS, Figure, figures, find_kind

_WIFI = {
    "receive_w": 0.13286,
    "send_w": 0.13286,
    "receive_j_byte": 0.13701 * 8e-6,
    "send_j_byte": 0.28317 * 8e-6,
    "tail_w": 0.1193,
    "tail_s": 0.238,
}
_LTE = {
    "receive_w": 1.28804,
    "send_w": 1.28804,
    "receive_j_byte": 0.05197 * 8e-6,
    "send_j_byte": 0.43839 * 8e-6,
    "tail_w": 1.06,
    "tail_s": 11.576,
}
_PHONE = {"idle_w": 0.27, "compute_w": 4.0}  # computing: an estimate, within what AutoFL's phones draw at most
_PRESETS = {"smartphone-wifi": _PHONE | _WIFI, "smartphone-4g": _PHONE | _LTE}

TITLES = {
    "smartphone-wifi": "a phone on Wi-Fi: measured in 2010 and 2012; computing is an estimate",
    "smartphone-4g": "a phone on LTE, whose radio stays awake for 11.6 s: measured in 2010 and 2012; computing is an estimate",
    "raspberry-pi-4": "the kind of device of that name",
    "jetson-nano": "the kind of device of that name",
    "laptop": "the kind of device of that name",
}
"""Name -> what it is, of every preset."""


def coefficients(name: str) -> dict[str, float]:
    """Draw of a preset: ``fedsim.meters.energy.COEFFICIENTS`` (W, J a byte, s), as far as they are not 0."""
    if name in _PRESETS:
        return _PRESETS[name]
    kind = find_kind(name, {}, "energy.preset")
    return {draws: getattr(kind, key) for draws, key in KIND_POWERS.items()}


_MEASURED = Figure(None, "Huang et al., MobiSys 2012, section 5", "2012-06")
_SOURCES = {
    "idle_w": Figure(None, "Carroll and Heiser, USENIX ATC 2010: Openmoko Freerunner, screen dark", "2010-06"),
    "compute_w": Figure(None, "estimate: within what the phones of AutoFL (Kim and Wu, MICRO 2021) draw at most", "2021-10"),
}


def preset_figures(name: str) -> dict[str, Figure]:
    """The figures of a preset with their sources: W, J a byte, s."""
    if name in _PRESETS:
        return {key: _SOURCES.get(key, _MEASURED)._replace(value=value) for key, value in _PRESETS[name].items()}
    return {key: figure for key, figure in figures(name, "energy.preset").items() if key in KIND_POWERS.values()}
