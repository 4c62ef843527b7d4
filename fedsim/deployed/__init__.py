"""Runs in real time: both halves of a strategy as a Flower app.

``export`` writes the app. ``server`` and ``client`` are the app's ServerApp and ClientApp,
``tasks`` and ``clock`` stand in for the simulated world. Imports ``running`` and the rooms below
it. Flower is loaded when an app runs.
"""
