"""Unmodified Flower apps in simulated time. Imports ``strategies`` and the rooms below it.

``strategy`` is the strategy of a scenario (``kind = "flower"``), ``server_side`` runs the
ServerApp, ``client_side`` the ClientApp, ``patches`` has fedsim's patches of Flower's functions
and of the clock, ``app_half`` loads one half of an app. Flower is loaded when a run begins.
"""
