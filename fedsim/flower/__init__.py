"""Unmodified Flower apps in simulated time.

``strategy`` is the strategy of a scenario (``kind = "flower"``). ``server_side`` runs the
ServerApp, and ``client_side`` the ClientApp; ``app_half`` loads either. ``patches`` has fedsim's
patches of Flower's functions and of the clock. Flower is imported when a run begins. This package
imports ``strategies`` and the packages that ``strategies`` imports.
"""
