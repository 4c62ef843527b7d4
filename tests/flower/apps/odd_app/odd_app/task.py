"""What both halves import; each draws its own number when it does."""

import numpy as np

DRAWN = float(np.random.random())
