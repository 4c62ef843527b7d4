"""Every kind of picture by name, with its function, and its heading and caption in a report."""

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
    """A kind of picture.

    Attributes:
        draw: its function, which raises ``NothingToDrawError`` if the picture does not apply.
        title: its heading.
        caption: its caption.
    """

    draw: Callable[..., Figure]
    title: str
    caption: str


OF_ONE = {
    "timeline": PictureKind(
        draw_timeline,
        "Timeline",
        "A lane a device, what it did when, what was wasted and why.",
    ),
    "stragglers": PictureKind(
        draw_stragglers,
        "Who was late, round by round",
        "Each selected device's epochs against its deadline, a panel a round: how far it "
        "came, and what became of it.",
    ),
    "clusters": PictureKind(
        draw_clusters,
        "Clusters by data size",
        "Groups that the server made of the devices by the sizes of their data, at first "
        "and when it grouped them again.",
    ),
    "membership": PictureKind(
        draw_membership,
        "Membership of groups over time",
        "A row a device, its colour the group that it is in; marks show moves, shifts of "
        "data, newcomers and leavers. Below it stand the sizes of the groups, and how "
        "well they agree with the true ones where these are known.",
    ),
    "similarity": PictureKind(
        draw_similarity,
        "How alike devices were when they were grouped",
        "The similarities or distances of every two devices that the server saw, ordered "
        "by the groups it made of them; below them, where that was recorded, how alike "
        "updates were in each round, within groups and across them.",
    ),
    "embedding": PictureKind(
        draw_embedding,
        "Where devices lay when they were grouped",
        "The clustered points, one per device, with colour and shape by the group that "
        "was found; one panel per time.",
    ),
    "split-tree": PictureKind(
        draw_split_tree,
        "How clusters were split",
        "A tree over the rounds: each cluster from its making to its split, with its "
        "members and its last accuracy.",
    ),
    "traffic": PictureKind(
        draw_traffic,
        "Traffic",
        "Bytes moved so far by direction and purpose, over simulated time and in total; "
        "what is hatched was wasted.",
    ),
    "batteries": PictureKind(
        draw_batteries,
        "Batteries",
        "Battery levels of a few devices over time, each on its own range, with the times"
        " at which they worked and ran flat.",
    ),
}
OF_SEVERAL = {
    "costs": PictureKind(
        draw_costs,
        "What accuracy costs, over seeds",
        "Mean test accuracy against bytes, simulated time and rounds; bands go from the "
        "lowest to the highest of the seeds.",
    ),
    "accuracy": PictureKind(
        draw_accuracy,
        "Accuracy",
        "Test accuracy against rounds, simulated time, and the bytes moved until then; "
        "other metrics in rows of their own.",
    ),
    "fairness": PictureKind(
        draw_fairness,
        "Fairness",
        "Fairness of selection: Jain's index and waiting times as the run goes on, and "
        "selections by device and by group.",
    ),
    "energy": PictureKind(
        draw_energy,
        "Energy by phase",
        "Joules that devices drew by phase, and with those of the server's side; what was"
        " wasted, and the carbon.",
    ),
    "traffic-purposes": PictureKind(
        draw_purposes_compared,
        "Traffic by purpose",
        "Bytes by purpose, all that moved and as papers count them, the mean of the seeds"
        " of a scenario.",
    ),
}
OF_ANY = ("accuracy", "fairness", "energy")  # kinds of OF_SEVERAL that apply to one run too
