"""Links with queues, and the order in which they are served in a time step."""

import math

import numpy as np

from fedsim.common.arrays import Floats, Ints
from fedsim.common.saved import saved
from fedsim.world.network.queues.step_plan import Level, QueueingRules

UNLIMITED = 1e15  # rate (bytes/s) that stands for an infinite rate


@saved()
class QueuedLinks:
    """Rates and sizes of queues of the shared links of a ``LinkComponent``, by link number from 1.

    Number 0 is a link of unlimited rate, with which shorter routes are padded.

    Args:
        rules: sizes of queues, and whether a route's first link makes senders wait when its queue
            would overflow.

    Attributes:
        names: name -> number.
        capacity: rates (bytes/s), float64 [links].
        length: capacity of the queue of each link (bytes), float64 [links].
        levels: the links in groups, which a time step serves one after the other. The group of a
            link is the greatest position that the link has on any flow's route. Set by ``group``.
        grouped: number n such that the links of the first n flows are in ``levels``; 0 if ``levels``
            must be computed anew.
        never_full: numbers of links that make senders wait instead of dropping packets, int64 [n].
    """

    def __init__(self, rules: QueueingRules) -> None:
        self._rules = rules
        self.names: dict[str, int] = {}
        self.capacity: Floats = np.array([UNLIMITED])
        self.length: Floats = np.array([math.inf])
        self.levels: list[Level] = []
        self.grouped = 0
        # greatest position of each link on any route, [links]
        self._furthest: Ints = np.zeros(1, dtype=np.int64)
        self._hops = 1  # length of the padded routes at the last grouping
        self.never_full = np.empty(0, dtype=np.int64)

    def add(self, name: str, rate: float) -> int:
        """Add a link, or change the rate of the link if it exists; return its number.

        Args:
            name: name of the link.
            rate: its rate (bytes/s), which may be infinite.
        """
        number = self.names.setdefault(name, len(self.capacity))
        if number == len(self.capacity):
            self.capacity = np.append(self.capacity, 0.0)
            self.length = np.append(self.length, 0.0)
        self.capacity[number] = min(rate, UNLIMITED)
        self.length[number] = self.length_at(name, rate)
        return number

    def length_at(self, name: str, rate: float) -> float:
        """Return the capacity of a link's queue (bytes) if the link had a given rate.

        The rules give the capacity in bytes, or as a time that is multiplied by the rate. At rate 0,
        an outage, the queue keeps its present capacity.

        Args:
            name: name of an existing link.
            rate: the rate (bytes/s).
        """
        if rate == 0:
            return self.length_of(name)
        return self._rules.length(name, min(rate, UNLIMITED))

    def length_of(self, name: str) -> float:
        """Return the capacity of the queue of an existing link (bytes)."""
        return self.length.item(self.names[name])

    def has(self, name: str, rate: float, length: float) -> bool:
        """Return whether a link has exactly this rate and this size of its queue.

        Args:
            name: name of an existing link.
            rate: the rate (bytes/s).
            length: capacity of the queue (bytes).
        """
        number = self.names[name]
        return bool(self.capacity[number] == rate and self.length[number] == length)

    def join(self, others: "QueuedLinks") -> Ints:
        """Add other links, with their rates and sizes of queues.

        Args:
            others: the other links.

        Returns:
            Array from the number of a link in ``others`` to its number here, int64 [links].
        """
        self.grouped = 0
        # old number -> new number; number 0, which pads routes, remains 0
        new_numbers = np.zeros(len(others.capacity), dtype=np.int64)
        for name, number in others.names.items():
            new_numbers[number] = self.names.setdefault(name, len(self.names) + 1)
        added = len(self.names) + 1 - len(self.capacity)  # count of links that are new here
        self.capacity = np.append(self.capacity, np.zeros(added))
        self.length = np.append(self.length, np.zeros(added))
        self.capacity[new_numbers[1:]] = others.capacity[1:]
        self.length[new_numbers[1:]] = others.length[1:]
        return new_numbers

    def remove_unused(self, route: Ints) -> Ints:
        """Remove the links that no flow uses any more, and number the remaining ones anew.

        Args:
            route: numbers of each flow's links, padded with 0, int64 [flows, hops].

        Returns:
            The routes by the new numbers, int64 [flows, hops].
        """
        self.grouped = 0
        used = np.union1d(route, [0])  # old numbers, ascending; 0 is kept as the padding
        new_numbers = np.zeros(len(self.capacity), dtype=np.int64)  # old number -> new number
        new_numbers[used] = np.arange(len(used))
        names = list(self.names)  # names in the order of the links' numbers, which begin with 1
        self.names = {names[number - 1]: new_numbers.item(number) for number in used[1:].tolist()}
        self.capacity = self.capacity[used]
        self.length = self.length[used]
        renumbered: Ints = new_numbers[route]
        return renumbered

    def group(self, route: Ints, lasts: Ints) -> None:
        """Sort the links into ``levels``, groups that are served one after the other in a step.

        Links are grouped by their furthest position on any route, so that in most cases bytes can
        pass a whole route within a step. Flows whose links are in ``levels`` already are not grouped
        again, unless a new flow moves one of their links to another level. The first
        ``grouped`` flows are in ``levels``.

        Args:
            route: numbers of each flow's links, padded with 0, int64 [flows, hops].
            lasts: position of the last link of each route, from 0, int64 [flows].
        """
        hops = route.shape[1]
        if hops != self._hops:
            self.grouped = 0  # the indices ``Level.cells`` depend on the length of routes
        # phase 1: one entry for each link of each flow that is not grouped yet
        flows, positions = (np.arange(hops) <= lasts[self.grouped :, None]).nonzero()
        flows += self.grouped
        links = route[flows, positions]
        # phase 2: furthest position of each link; the last grouping has stored those of its links
        known_links = len(self._furthest) if self.grouped else 0
        furthest = np.zeros(len(self.capacity), dtype=np.int64)
        furthest[:known_links] = self._furthest[:known_links]
        np.maximum.at(furthest, links, positions)
        if np.count_nonzero(furthest[:known_links] != self._furthest[:known_links]):
            # a new flow moves a link to another level, so all flows are grouped anew
            self.grouped = 0
            self.group(route, lasts)
            return
        if self._rules.holds_back:
            # links that are the first link of each route over them
            self.never_full = (furthest == 0).nonzero()[0]
        # phase 3: the entries of the new flows are appended to the former levels
        former = {level.number: level for level in self.levels} if self.grouped else {}
        level_numbers = furthest[links]
        last_level = max([int(level_numbers.max(initial=-1)), *former])
        self.levels = []
        for number in range(last_level + 1):
            at_level = (level_numbers == number).nonzero()[0]
            level_flows = flows[at_level]
            level_positions = positions[at_level]
            level = Level(
                number=number,
                flows=level_flows,
                links=links[at_level],
                cells=level_flows * hops + level_positions,
                is_last=level_positions == lasts[level_flows],
            )
            if number in former:
                level = former[number].followed_by(level)
            if len(level.flows):
                self.levels.append(level)
        self._furthest = furthest
        self._hops = hops
        self.grouped = len(route)


def label_components(route: Ints, links: int) -> Ints:
    """Return a label for each flow, equal for flows that share links directly or via other flows.

    Args:
        route: numbers of each flow's links, int64 [flows, hops]. Shorter routes are padded with
            0, which is not a link.
        links: count of links, including number 0.

    Returns:
        The label: the index of the first flow that has it, int64 [flows].
    """
    flows = len(route)
    labels = np.arange(flows)
    # The least label spreads from flows to their links, and from links to their flows, until nothing
    # changes. The label ``flows``, greater than all others, stands for none.
    while True:
        # least label of the flows on each link, [links]
        least_label = np.full(links, flows)
        labels_by_hop = np.repeat(labels, route.shape[1])  # the flow's label, once for each hop
        np.minimum.at(least_label, route.ravel(), labels_by_hop)
        least_label[0] = flows  # the padding connects no flows
        # least label of the links on each flow's route, [flows]
        label_by_links = least_label[route].min(axis=1, initial=flows)
        spread = np.minimum(labels, label_by_links)
        if np.array_equal(spread, labels):
            return labels
        labels = spread


def share_first_links(wanted_bytes: Floats, first_links: Ints, sendable: Floats) -> Floats:
    """Divide the bytes that each link can send equally among the flows that begin on it.

    A flow gets at most what its sender wants; the rest goes to the other flows on the link.

    Args:
        wanted_bytes: bytes that each sender wants to send, float64 [flows].
        first_links: number of each flow's first link, int64 [flows].
        sendable: bytes that each link can send, float64 [links].

    Returns:
        Bytes that each sender may send, float64 [flows].
    """
    total = np.bincount(first_links, weights=wanted_bytes, minlength=len(sendable))
    # whether the first link of each flow cannot send all bytes that its senders want to send
    is_crowded = (total > sendable)[first_links]
    rows = is_crowded.nonzero()[0]
    if not len(rows):
        return wanted_bytes
    sent = wanted_bytes.copy()  # changed for the flows on crowded links
    if np.bincount(first_links[rows]).max() == 1:  # no crowded link has a second flow
        sent[rows] = sendable[first_links[rows]]
        return sent
    # Max-min fairness: on a link of b sendable bytes, whose n flows want w_1 <= ... <= w_n bytes, a
    # flow gets min(w_i, s), with s the maximum over k of (b - w_1 - ... - w_(k-1)) / (n - k + 1).
    rows = rows[np.lexsort((wanted_bytes[rows], first_links[rows]))]
    links = first_links[rows]  # sorted, so that the flows of a link are neighbours
    sorted_bytes = wanted_bytes[rows]
    # the rows of one link are a group, from its entry in ``begins`` up to its entry in ``ends``
    is_begin = np.ones(len(rows), dtype=bool)
    is_begin[1:] = links[1:] != links[:-1]
    begins = np.flatnonzero(is_begin)
    ends = np.empty_like(begins)
    ends[:-1] = begins[1:]
    ends[-1] = len(rows)
    group_of_row = np.cumsum(is_begin) - 1
    # w_1 + ... + w_(k-1) of each row k of its link, by differences of sums over all links
    bytes_before = np.cumsum(sorted_bytes) - sorted_bytes
    bytes_before -= bytes_before[begins][group_of_row]
    flows_left = ends[group_of_row] - np.arange(len(rows))  # n - k + 1 of each row
    shares = (sendable[links] - bytes_before) / flows_left
    link_share = np.maximum(np.maximum.reduceat(shares, begins), 0.0)
    sent[rows] = np.minimum(sorted_bytes, link_share[group_of_row])
    return sent
