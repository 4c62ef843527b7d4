"""Every kind of picture by name, with its function and the words that stand beside it in a report."""

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from fedsim.analysis.accuracy import draw_accuracy, draw_costs
from fedsim.analysis.clusters import draw_clusters
from fedsim.analysis.edges import draw_edges
from fedsim.analysis.embedding import draw_embedding
from fedsim.analysis.energy import draw_batteries, draw_energy
from fedsim.analysis.fairness import draw_fairness
from fedsim.analysis.membership import draw_membership
from fedsim.analysis.similarity import draw_similarity
from fedsim.analysis.split_tree import draw_split_tree
from fedsim.analysis.stragglers import draw_stragglers
from fedsim.analysis.timeline import draw_timeline
from fedsim.analysis.traffic import draw_purposes_compared, draw_traffic, draw_traffic_compared


class Kind(NamedTuple):
    """A kind of picture.

    Attributes:
        draw: makes it of a run or of several, or raises ``NothingToDrawError``.
        title: a heading for it.
    """

    draw: Callable[..., Figure]
    title: str

    @property
    def says(self) -> str:
        """What it shows, the first paragraph of the function's docstring; a figure that shows something else has a label."""
        return " ".join((self.draw.__doc__ or "").partition("\n\n")[0].split())


OF_ONE = {
    "timeline": Kind(draw_timeline, "Timeline"),
    "stragglers": Kind(draw_stragglers, "Who was late, round by round"),
    "clusters": Kind(draw_clusters, "Clusters by data size"),
    "membership": Kind(draw_membership, "Membership of groups over time"),
    "similarity": Kind(draw_similarity, "How alike devices were when they were grouped"),
    "embedding": Kind(draw_embedding, "Where devices lay when they were grouped"),
    "split-tree": Kind(draw_split_tree, "How clusters were split"),
    "edges": Kind(draw_edges, "Edge servers"),
    "traffic": Kind(draw_traffic, "Traffic"),
    "batteries": Kind(draw_batteries, "Batteries"),
}
OF_SEVERAL = {
    "costs": Kind(draw_costs, "What accuracy costs, over seeds"),
    "accuracy": Kind(draw_accuracy, "Accuracy"),
    "fairness": Kind(draw_fairness, "Fairness"),
    "energy": Kind(draw_energy, "Energy by phase"),
    "traffic-compared": Kind(draw_traffic_compared, "Traffic of each"),
    "traffic-purposes": Kind(draw_purposes_compared, "Traffic by purpose"),
}
OF_ANY = ("accuracy", "fairness", "energy")  # what of OF_SEVERAL says something of one run, too
