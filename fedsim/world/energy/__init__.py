"""Scenario section ``[energy]``: powers by device and phase, batteries, and carbon intensity."""
