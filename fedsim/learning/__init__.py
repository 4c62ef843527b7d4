"""The training core: data, models, their local training on devices, their mixing and their tests.

Imports ``clock`` and ``common``.

Importing the package does not load torch. A run with learning imports ``engine``, which does.
"""

from fedsim.learning.evaluation import Evaluation
from fedsim.learning.learner import Learner
from fedsim.learning.refs import Ref

__all__ = ["Evaluation", "Learner", "Ref"]
