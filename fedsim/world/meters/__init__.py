"""Quantities counted besides bytes: energy, money, and the user's own, as columns of rounds and
devices (``base.Meter``).
"""

from fedsim.world.meters.energy import EnergyMeter
from fedsim.world.meters.spec import Bill

OF_SECTIONS = (EnergyMeter, Bill)
"""The meters that have a section of the scenario; their columns are always there, empty where
they do not count.
"""
