"""Questions over runs: studies, comparisons, audits, forecasts, calibration.

Imports all rooms but ``cli``.
"""
