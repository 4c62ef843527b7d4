"""Studies, comparisons, audits, forecasts and calibration: the code that plans or reads runs.

It may import every other folder of the package except ``cli``.
"""
