"""The training core: models, their local training on devices, their mixing and their tests.

Nothing here loads torch; ``engine``, which a run with learning begins with, does.
"""

from fedsim.learning.evaluation import Evaluation
from fedsim.learning.learner import Learner
from fedsim.learning.refs import Ref

__all__ = ["Evaluation", "Learner", "Ref"]
