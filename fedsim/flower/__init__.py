"""Flower apps in simulated time: a ServerApp and a ClientApp, as they are, between simulated devices.

``strategy`` is what a scenario names (``kind = "flower"``), ``server_side`` the ServerApp's half, ``client_side`` that of the
ClientApp, ``replaced`` what of Flower and of the clock an app finds otherwise. Flower itself is loaded when a run begins.
"""
