"""Cases that nobody would write by hand, drawn by number: ``tests/benchmarks/fuzz.py`` tries many, the tests a few."""
