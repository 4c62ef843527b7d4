"""Meters, which count quantities of a run: energy, costs, and quantities of the user's meters.

``energy.py`` has ``EnergyMeter``, the joules and grams of CO2 of ``[energy]``. ``spec.py`` has
``Bill``, the costs by the prices of ``[costs]``. Bytes are not counted by a meter but by the class
``Ledger`` in ``fedsim/records/ledger.py``.
"""

from fedsim.world.meters.energy import EnergyMeter
from fedsim.world.meters.spec import Bill

OF_SECTIONS = (EnergyMeter, Bill)
"""Classes of meters that have a section of the scenario, ``[energy]`` and ``[costs]``.

Every table has the columns of these classes, which are empty if the scenario lacks the section.
"""
