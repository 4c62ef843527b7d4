"""Meters, which count energy, money and the user's own quantities by round and device."""

from fedsim.world.meters.energy import EnergyMeter
from fedsim.world.meters.spec import Bill

OF_SECTIONS = (EnergyMeter, Bill)
"""The meters that have a section of the scenario.

Their columns are in every table, and empty if the scenario lacks the section.
"""
