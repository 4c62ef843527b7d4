"""Deployment: a strategy's server code and client code run in real time, as a Flower app.

``export`` writes the app. ``server`` and ``client`` are the app's ServerApp and ClientApp;
``tasks`` and ``clock`` replace the simulated devices and the simulated time. Imports ``running``
and the packages that ``running`` may import. Flower is loaded only when an app runs.
"""
