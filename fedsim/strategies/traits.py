"""Traits: facts about a strategy for checks of other sections, whatever the values of its keys."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of a strategy that do not depend on the values of its keys in a scenario.

    Attributes:
        at_edges: whether the strategy needs edge servers in the network.
        serverless: whether devices send models to each other, without a server (``Peers``).
        brings_learning: whether the strategy has its own models and data; the scenario's sections
            about learning are then refused.
        needs_labels: whether the strategy uses ``Device.label_counts``; refused for data without
            labels.
        plain_down: whether the strategy sends no whole models to devices; codecs other than
            ``plain`` for ``messages.down`` are refused.
        sends_models: whether the strategy sends models in any direction; if not, ``[messages]`` is
            refused.
        only_own_models: whether each device has a model of its own, and no model serves several
            devices. Such a strategy has no model for devices that never train.
        averages_updates: whether each new model is the plain mean of a round's updates; see
            ``StrategyParams.averages_updates``.
        accumulated_contents: names of contents of devices' messages that device and server each
            add up over rounds, such as the update in FedDyn. These contents are encoded by
            ``Codec.for_added_up``.
        kept_by: what decides which tensors stay on the devices. ``scenario``: the keys
            ``model.keep`` and ``model.send``; ``strategy``: ``StrategyParams.stays``; ``nobody``:
            no tensor stays there.
        late_goes_on: whether devices go on with their tasks when the deadline closes the round. The
            field ``deadline`` of the record ``round-start`` is then None, as no task ends there.
    """

    at_edges: bool = False
    serverless: bool = False
    brings_learning: bool = False
    needs_labels: bool = False
    plain_down: bool = False
    sends_models: bool = True
    only_own_models: bool = False
    averages_updates: bool = False
    accumulated_contents: tuple[str, ...] = ()
    kept_by: Literal["nobody", "scenario", "strategy"] = "nobody"
    late_goes_on: bool = False
