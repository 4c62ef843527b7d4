"""What devices draw, as published measurements say: each figure with its source and date; ``estimate`` where there is none.

Idle is what a device draws by being on, its screen dark; all else comes on top of that. Sources:

- Carroll and Heiser, "An analysis of power consumption in a smartphone", USENIX ATC 2010: idle, 0.27 W (Openmoko Freerunner).
- Huang et al., "A close examination of performance and power characteristics of 4G LTE networks", MobiSys 2012, the power model
  of their section 5 (HTC phones): a base while data move, joules by throughput each way, and a tail.
  Wi-Fi 132.86 mW, 137.01 and 283.17 mW a Mbit/s down and up, tail 119.3 mW for 238 ms;
  LTE 1,288.04 mW, 51.97 and 438.39 mW a Mbit/s, tail 1,060 mW for 11.576 s.
- Kim and Wu, "AutoFL", MICRO 2021: the CPUs of three phones on which they train draw at most 3.6 to 5.6 W.
- chipwired.com, "How much power a Raspberry Pi uses" (a Raspberry Pi 4 with Bullseye, so 2021 to 2023): 2.35 W idle, 5.25 W
  under load with Wi-Fi.
- NVIDIA, power modes of the Jetson Nano (Linux for Tegra, 2019): 10 W with all cores, the default; 5 W with two.
- Atwood, codinghorror.com, 9 April 2006: Wi-Fi under load adds 3 W to a laptop.
- HotHardware, Dell XPS 13 (Skylake), 2015: the processor draws 0.75 W idle and 12.5 W under load.
"""

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
_ALWAYS_AWAKE = {"receive_j_byte": 0.0, "send_j_byte": 0.0, "tail_w": 0.0, "tail_s": 0.0}

PRESETS: dict[str, dict[str, float]] = {
    "smartphone-wifi": _PHONE | _WIFI,
    "smartphone-4g": _PHONE | _LTE,
    # 2.9 W is for load and Wi-Fi together; what Wi-Fi takes of it is an estimate.
    "raspberry-pi-4": _ALWAYS_AWAKE | {"idle_w": 2.35, "compute_w": 2.4, "receive_w": 0.5, "send_w": 0.5},
    # Idle and Wi-Fi are estimates; computing is the rest of the 10 W.
    "jetson-nano": _ALWAYS_AWAKE | {"idle_w": 2.0, "compute_w": 8.0, "receive_w": 0.5, "send_w": 0.5},
    # Idle, its screen dark, is an estimate.
    "laptop": _ALWAYS_AWAKE | {"idle_w": 5.0, "compute_w": 11.75, "receive_w": 3.0, "send_w": 3.0},
}
"""Name -> coefficients (``fedsim.records.energy.COEFFICIENTS``: W, J a byte, s)."""

TITLES = {
    "smartphone-wifi": "a phone on Wi-Fi: measured in 2010 and 2012; computing is an estimate",
    "smartphone-4g": "a phone on LTE, whose radio stays awake for 11.6 s: measured in 2010 and 2012; computing is an estimate",
    "raspberry-pi-4": "measured about 2022; the share of Wi-Fi is an estimate",
    "jetson-nano": "its power mode of 10 W (2019); idle and Wi-Fi are estimates",
    "laptop": "processor measured in 2015, Wi-Fi in 2006; idle is an estimate",
}
