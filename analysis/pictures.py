"""Every kind of picture by name, with what draws it and the words that stand beside it in a report."""

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
        says: what it shows, for people who see it and for those who do not; a figure that shows something else has a label.
    """

    draw: Callable[..., Figure]
    title: str
    says: str


OF_ONE = {
    "timeline": Kind(
        draw_timeline,
        "Timeline",
        "A lane a device, what it did when, what was wasted and why.",
    ),
    "stragglers": Kind(
        draw_stragglers,
        "Who was late, round by round",
        "Each selected device's epochs against its deadline, a panel a round: how far it came, and what became of it.",
    ),
    "clusters": Kind(
        draw_clusters,
        "Clusters by data size",
        "Groups that the server made of the devices by the sizes of their data, at first and when it grouped them again.",
    ),
    "membership": Kind(
        draw_membership,
        "Membership of groups over time",
        "A row a device, its colour the group that it is in; marks show moves, shifts of data, newcomers and leavers, and "
        "below it stand the sizes of the groups and how well they agree with the true ones where these are known.",
    ),
    "similarity": Kind(
        draw_similarity,
        "How alike devices were when they were grouped",
        "The similarities or distances of every two devices that the server saw, ordered by the groups it made of them; below "
        "them, where that was recorded, how alike updates were in each round, within groups and across them.",
    ),
    "embedding": Kind(
        draw_embedding,
        "Where devices lay when they were grouped",
        "What was clustered, a point a device, its colour and shape the group that was found; a panel for each time.",
    ),
    "split-tree": Kind(
        draw_split_tree,
        "How clusters were split",
        "A tree over the rounds: each cluster from its making to its split, with its members and its last accuracy.",
    ),
    "edges": Kind(
        draw_edges,
        "Edge servers",
        "A lane an edge server: what came from the server and went to it, how many of its devices worked for it, its losses.",
    ),
    "traffic": Kind(
        draw_traffic,
        "Traffic",
        "Bytes moved so far by direction and purpose, over simulated time and in total; what is hatched was wasted.",
    ),
    "batteries": Kind(
        draw_batteries,
        "Batteries",
        "How full the batteries of a few devices were as time went on, when these devices worked, and when they ran flat.",
    ),
}
OF_SEVERAL = {
    "costs": Kind(
        draw_costs,
        "What accuracy costs, over seeds",
        "Mean test accuracy against bytes, simulated time and rounds; bands go from the lowest to the highest of the seeds.",
    ),
    "accuracy": Kind(
        draw_accuracy,
        "Accuracy",
        "Test accuracy against rounds, simulated time, and the bytes moved until then.",
    ),
    "fairness": Kind(
        draw_fairness,
        "Fairness",
        "How evenly devices were selected: Jain's index and waiting times as the run goes on, and selections by device.",
    ),
    "energy": Kind(
        draw_energy,
        "Energy by phase",
        "Joules that devices drew by phase, and with those of the server's side; what was wasted, and the carbon.",
    ),
    "traffic-compared": Kind(
        draw_traffic_compared,
        "Traffic of each",
        "What each run moved down and up, and the part of it that was wasted.",
    ),
    "traffic-purposes": Kind(
        draw_purposes_compared,
        "Traffic by purpose",
        "Bytes by purpose, all that moved and as papers count them, the mean of the seeds of a scenario.",
    ),
}
OF_ANY = ("accuracy", "fairness", "energy")  # what of OF_SEVERAL says something of one run, too
