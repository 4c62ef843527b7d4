"""Code that plans or reads runs: studies, comparisons, audits, forecasts and calibration.

It may import every other folder of the package except ``cli``.
"""
