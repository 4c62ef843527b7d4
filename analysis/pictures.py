"""Every kind of picture by name, with its function, and its heading and caption in a report."""

import re
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
    """Kind of picture: the function that draws it, and its texts.

    Attributes:
        draw: function that draws the picture, or raises ``NothingToDrawError`` if the picture does
            not apply.
        title: heading of the picture in a report.
        caption: caption of the picture in a report.
    """

    draw: Callable[..., Figure]
    title: str
    caption: str

    def caption_for(self, word: str) -> str:
        """Return the caption, in which ``word`` replaces the noun "round".

        Args:
            word: a run's noun for its rounds, such as ``version``.
        """
        return re.sub(r"\bround(?=s?\b)", lambda _: word, self.caption)


OF_ONE = {
    "timeline": PictureKind(
        draw_timeline,
        "Timeline",
        "One lane for each device: its steps over time, the wasted ones with their cause, and its "
        "messages outside of tasks.",
    ),
    "stragglers": PictureKind(
        draw_stragglers,
        "Stragglers, round by round",
        "Each selected client's epochs against its deadline, one panel for each round, and how "
        "its task ended.",
    ),
    "clusters": PictureKind(
        draw_clusters,
        "Clusters by data size",
        "The server's groups of devices by the sizes of their data, at first and after each "
        "new grouping.",
    ),
    "membership": PictureKind(
        draw_membership,
        "Membership of groups over time",
        "One row for each device, in the colour of its group; marks show moves, shifts of "
        "data, newcomers and leavers. Below are the sizes of the groups, and their agreement "
        "with the true groups if these are known.",
    ),
    "similarity": PictureKind(
        draw_similarity,
        "Similarity of devices when they were grouped",
        "The similarity or distance of every two devices that the server saw, ordered by "
        "group. Below, if recorded: similarity of updates in each round, within groups and "
        "across groups.",
    ),
    "embedding": PictureKind(
        draw_embedding,
        "Clustered points of devices",
        "The clustered points, one for each device, with colour and shape by the resulting "
        "group; one panel for each clustering.",
    ),
    "split-tree": PictureKind(
        draw_split_tree,
        "Splits of clusters",
        "A tree over the rounds: each cluster from its beginning to its split, with its "
        "members and its last accuracy.",
    ),
    "traffic": PictureKind(
        draw_traffic,
        "Traffic",
        "Bytes moved so far by direction and purpose, over simulated time and in total; "
        "hatched bytes were wasted.",
    ),
    "batteries": PictureKind(
        draw_batteries,
        "Batteries",
        "Battery levels of a few devices over time, each on its own range and from its first "
        "record on, with the times at which the devices worked and ran flat.",
    ),
}
OF_SEVERAL = {
    "costs": PictureKind(
        draw_costs,
        "Costs of accuracy, over seeds",
        "Mean test accuracy against bytes, simulated time and rounds; bands go from the "
        "lowest to the highest of the seeds.",
    ),
    "accuracy": PictureKind(
        draw_accuracy,
        "Accuracy",
        "Results of tests against rounds, simulated time, and the bytes moved until then; each "
        "measure has a row.",
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
        "Energy by phase, of devices and of the server's side if it was counted; the wasted part, "
        "and the carbon.",
    ),
    "traffic-purposes": PictureKind(
        draw_purposes_compared,
        "Traffic by purpose",
        "Bytes by purpose: means over the seeds of a scenario. A second panel has the bytes as "
        "papers count them, if these differ.",
    ),
}
OF_ANY = ("accuracy", "fairness", "energy")  # kinds of OF_SEVERAL that apply to one run too
