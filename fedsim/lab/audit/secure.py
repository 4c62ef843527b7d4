"""Check that secure aggregation exchanged the keys and shares of its protocol."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.common.units import Bytes
from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audit.frames import read_quantity, report_rows

_PHASES = ("secure-keys", "secure-shares", "secure-unmask")
_EXACT_KINDS = (("up", "secure-keys"), ("down", "secure-keys"), ("up", "secure-shares"))
"""Messages whose size follows from the count of neighbours.

The size of other messages depends on which clients drop out.
"""


def check_secure_messages(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each message part of secure aggregation whose size breaks its protocol.

    Clients exchange keys and shares of secrets with their neighbours in a graph, through the
    server. The sizes follow from the scenario and from each client's count of neighbours.
    """
    scenario = evidence.run.scenario
    section = scenario["strategy"].get("secure_aggregation")
    parts = _find_parts(evidence)
    if section is None:
        template = "transfer {row} has {purpose}, and the scenario has no secure aggregation"
        yield from report_rows(template, parts)
        return
    if len(evidence.data_of("aggregate")) and not len(parts):
        yield "the scenario has secure aggregation, and there are no messages of it"
    key = read_quantity(Bytes, section["key"])
    share = read_quantity(Bytes, section["share"])
    # folders of earlier versions call the key ``neighbours``
    degree = section.get("neighbors", section.get("neighbours"))
    most_neighbours = degree or evidence.trainable - 1
    parts = parts.assign(neighbours=_count_neighbours(parts, degree))
    # the size has to be a multiple of a key or share, from ``lower`` to ``upper``
    for kind, group in parts.groupby(["direction", "purpose"]):
        _, purpose = kind
        # a client has two keys: one to encrypt its shares, and one for its masks
        unit = 2 * key if purpose == "secure-keys" else share
        neighbours = group["neighbours"]
        lower = unit * _fewest_units(kind, neighbours)
        upper = lower
        if kind not in _EXACT_KINDS:
            upper = _where_known(neighbours, 2 * unit * most_neighbours)
        size = group["bytes"]
        wrong = size < lower.fillna(0.0)
        wrong |= size > upper.fillna(math.inf)
        wrong |= size % unit > 0
        template = (
            "transfer {row} {direction} has {bytes!r} bytes of {purpose}; by the scenario "
            "{lower:g} to {upper:g}"
        )
        yield from report_rows(template, group.assign(lower=lower, upper=upper), wrong)


def _fewest_units(kind: object, neighbours: "pd.Series[float]") -> "pd.Series[float]":
    """Return the least count of keys or shares in messages, NaN if the neighbours are not known.

    Args:
        kind: direction and purpose of the messages, such as ``("up", "secure-shares")``.
        neighbours: count of neighbours of each message's client.
    """
    if kind == ("down", "secure-keys"):
        return neighbours
    if kind == ("up", "secure-shares"):
        return 2 * neighbours
    return _where_known(neighbours, 1)


def _where_known(neighbours: "pd.Series[float]", value: float) -> "pd.Series[float]":
    """Return ``value`` for each message; NaN if the count of neighbours is not known."""
    return pd.Series(float(value), index=neighbours.index).where(neighbours.notna())


def _find_parts(evidence: Evidence) -> pd.DataFrame:
    """Return the parts of messages that belong to secure aggregation, in order of their ends.

    Returns:
        DataFrame of transfers with ``purpose`` and ``bytes`` of the part, and ``requested_at``, the
        time (s) at which the server asked for the message's task; the index is the transfer's row.
    """
    columns = ["direction", "payloads", "end", "outcome", "task"]
    task_starts = evidence.tasks.drop_duplicates("task").set_index("task")["start"]
    transfers = evidence.transfers[columns]
    transfers = transfers.assign(requested_at=transfers["task"].map(task_starts))
    parts = [transfers.iloc[:0].assign(purpose="", bytes=0.0)]
    for code, payloads in enumerate(evidence.payloads.lists):
        for purpose, size in payloads:
            if purpose in _PHASES:
                messages = transfers[transfers["payloads"] == code]
                parts.append(messages.assign(purpose=purpose, bytes=size))
    return pd.concat(parts).astype({"direction": object}).sort_values("end", kind="stable")


def _count_neighbours(parts: pd.DataFrame, degree: int | None) -> "pd.Series[float]":
    """Return the count of neighbours of each message's client, NaN if it is not known.

    A client exchanges shares of secrets with its neighbours, which are drawn among the clients
    whose keys the server sends it.

    Args:
        parts: the parts of messages, as ``_find_parts`` returns them.
        degree: count of neighbours of each client; None if all other clients are neighbours.
    """
    key_lists = _find_key_lists(parts)
    neighbours = key_lists["clients"].to_numpy() - 1.0
    if degree is not None:
        neighbours = np.minimum(degree, neighbours)
    # any other message has the count of the message that sent the keys to its client's task
    by_row = dict(zip(key_lists.index.tolist(), neighbours.tolist(), strict=True))
    by_task = dict(zip(key_lists["task"].tolist(), neighbours.tolist(), strict=True))
    counts = []
    for row, task in zip(parts.index.tolist(), parts["task"].tolist(), strict=True):
        counts.append(by_row.get(row, by_task.get(task, np.nan)))
    return pd.Series(counts, index=parts.index, dtype=np.float64)


def _find_key_lists(parts: pd.DataFrame) -> pd.DataFrame:
    """Return the messages by which the server sends the clients' keys, and of how many clients.

    The server collects the clients' keys and then sends them to all these clients in one instant.
    A message may reach its device later, so that the time of the server's request is used, not the
    time of the transfer.

    Args:
        parts: the parts of messages, as ``_find_parts`` returns them.

    Returns:
        DataFrame of the messages, with ``clients``: count of the keys that arrived since the
        previous such instant.
    """
    of_keys = parts["purpose"] == "secure-keys"
    is_key = (parts["direction"] == "up") & of_keys & (parts["outcome"] == "done")
    is_sent_out = (parts["direction"] == "down") & of_keys
    ordered = parts.assign(
        at=parts["requested_at"].where(is_sent_out, parts["end"]),
        is_key=is_key,
        is_sent_out=is_sent_out,
    )
    ordered = ordered.sort_values(["at"], kind="stable")
    keys_so_far = ordered["is_key"].cumsum()
    sent_out = ordered[ordered["is_sent_out"]]
    # whether a message is the first of its instant, and the keys that arrived before it
    begins_instant = (sent_out["at"] != sent_out["at"].shift()).to_numpy()
    keys_by_instant = keys_so_far[ordered["is_sent_out"]].to_numpy()[begins_instant]
    clients_by_instant = np.diff(keys_by_instant, prepend=0)
    instant = np.cumsum(begins_instant) - 1  # index of each message's instant
    return sent_out.assign(clients=clients_by_instant[instant])
