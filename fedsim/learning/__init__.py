"""The training core: data, models, their local training on devices, their mixing and their tests.

Imports ``clock`` and ``common``.

Nothing here loads torch; ``engine``, which a run with learning begins with, does.
"""

from fedsim.learning.evaluation import Evaluation
from fedsim.learning.learner import Learner
from fedsim.learning.refs import Ref

__all__ = ["Evaluation", "Learner", "Ref"]
