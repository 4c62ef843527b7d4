"""Books of a run: energy (``energy.py``), money (``spec.py``), and the user's own meters.

``energy.py`` has ``EnergyMeter``, the joules and grams of CO2 of ``[energy]``. ``spec.py`` has
``Bill``, the prices of ``[costs]``. The third book, of bytes, is no meter: it is the class
``Ledger`` in ``fedsim/records/ledger.py``.
"""

from fedsim.world.meters.energy import EnergyMeter
from fedsim.world.meters.spec import Bill

OF_SECTIONS = (EnergyMeter, Bill)
"""Classes of meters that have a section of the scenario, ``[energy]`` and ``[costs]``.

Every table has the columns of these classes, which are empty if the scenario lacks the section.
"""
