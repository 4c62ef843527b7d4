"""Cases that nobody would write by hand, drawn by number: ``tests/benchmarks/fuzz.py`` tries
many, the tests a few.
"""

import os

# read when libraries are loaded
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
