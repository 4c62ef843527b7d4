"""Every kind of picture by name, with its function and the words that stand beside it in a
report.
"""

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from fedsim.analysis.accuracy import draw_accuracy, draw_costs
from fedsim.analysis.clusterings import draw_embedding, draw_similarity
from fedsim.analysis.clusters import draw_clusters
from fedsim.analysis.energy import draw_batteries, draw_energy
from fedsim.analysis.fairness import draw_fairness
from fedsim.analysis.membership import draw_membership, draw_split_tree
from fedsim.analysis.stragglers import draw_stragglers
from fedsim.analysis.timeline import draw_timeline
from fedsim.analysis.traffic import draw_purposes_compared, draw_traffic


class PictureKind(NamedTuple):
    """A kind of picture: its function, which raises ``NothingToDrawError`` where it does not
    apply, and a heading.
    """

    draw: Callable[..., Figure]
    title: str

    @property
    def says(self) -> str:
        """Its caption: the first paragraph of the function's docstring."""
        return " ".join((self.draw.__doc__ or "").partition("\n\n")[0].split())


OF_ONE = {
    "timeline": PictureKind(draw_timeline, "Timeline"),
    "stragglers": PictureKind(draw_stragglers, "Who was late, round by round"),
    "clusters": PictureKind(draw_clusters, "Clusters by data size"),
    "membership": PictureKind(draw_membership, "Membership of groups over time"),
    "similarity": PictureKind(draw_similarity, "How alike devices were when they were grouped"),
    "embedding": PictureKind(draw_embedding, "Where devices lay when they were grouped"),
    "split-tree": PictureKind(draw_split_tree, "How clusters were split"),
    "traffic": PictureKind(draw_traffic, "Traffic"),
    "batteries": PictureKind(draw_batteries, "Batteries"),
}
OF_SEVERAL = {
    "costs": PictureKind(draw_costs, "What accuracy costs, over seeds"),
    "accuracy": PictureKind(draw_accuracy, "Accuracy"),
    "fairness": PictureKind(draw_fairness, "Fairness"),
    "energy": PictureKind(draw_energy, "Energy by phase"),
    "traffic-purposes": PictureKind(draw_purposes_compared, "Traffic by purpose"),
}
OF_ANY = ("accuracy", "fairness", "energy")  # what of OF_SEVERAL says something of one run, too
