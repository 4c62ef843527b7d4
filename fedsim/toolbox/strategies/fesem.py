"""FeSEM: each client belongs to the group whose model is nearest to its own (Xie et al., 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats, Floats32
from fedsim.common.former_keys import Former
from fedsim.common.spec import Epochs
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.toolbox.clustering.algorithms import kmeans
from fedsim.toolbox.strategies.grouped import Grouped, GroupedParams, GroupedState


class FeSEMParams(GroupedParams):
    """Keys of ``[strategy]`` for FeSEM, in addition to the keys of groups and rounds.

    Attributes:
        aggregation: ``mean``, as in the paper; ``weighted``, by samples; ``first``, the update of
            the client that was asked first, as in the published code of FlexCFL.
        follows: when clients are assigned to groups. ``published-code``: the code of FlexCFL, in
            which a round's clients join the group with the nearest model before they train.
            ``paper`` (Algorithm 1 of Xie et al., 2020): after each round every client that has sent
            a model joins the group whose model is nearest to the sent one, and a group's model
            becomes the mean of its members' last models; k-means makes the first groups.
    """

    instead: ClassVar[Former] = {**GroupedParams.instead, "centers": "follows"}
    sweeps: ClassVar[bool] = True
    kind: Literal["fesem", "fesem-mig"] = "fesem"
    clients_per_round: int = Field(default=20, ge=1)
    local_epochs: Epochs = 10
    aggregation: AggregationSpec = Mean()

    @model_validator(mode="after")
    def _check_paper_mean(self) -> Self:
        if not self.as_published and (self.aggregation.kind != "mean" or self.server is not None):
            raise ValueError(
                "'follows' is 'paper', where a group's model is the mean of its points; "
                "'aggregation' must be 'mean'"
            )
        return self


@dataclass
class FeSEMState(GroupedState):
    """State of FeSEM on the server: the groups' models, and each client's last model.

    A client that has not trained has the initial model.

    Attributes:
        last: Last model of each client, at first the initial model.
        senders: IDs of the clients that have sent a model, ascending.
        begun: Whether k-means has made the first groups, for which at least ``groups`` clients must
            have sent a model.
    """

    last: list[Ref] = field(default_factory=list)
    senders: list[int] = field(default_factory=list)
    begun: bool = False


def _distances(points: Sequence[Floats32], centers: Sequence[Floats32]) -> Floats:
    """Compute the Euclidean distance of each model from each group's model.

    Args:
        points: the models, float32 [d] each.
        centers: the groups' models, float32 [d] each.

    Returns:
        Distances, float64 [points, centers]; infinite if a model is not finite.
    """
    distances = np.empty((len(points), len(centers)))
    with np.errstate(all="ignore"):  # values of a diverged device are not finite
        for position, point in enumerate(points):
            exact = point.astype(np.float64)
            distances[position] = [np.linalg.norm(exact - center) for center in centers]
    return np.nan_to_num(distances, nan=np.inf, posinf=np.inf)


class FeSEM(Grouped[FeSEMParams]):
    """Federated stochastic expectation maximisation.

    Each client is in the group whose model is nearest to the client's last trained model.

    Source: Xie et al., "Multi-center federated learning" (2020), as in the published code of
    FlexCFL, by distances of whole models.

    A group is a set of clients that share a model. A round has these steps (``follows = "paper"``
    has another order):

    - E-step, at the server: each selected client joins the group whose model is nearest (Euclidean)
      to the client's last model, at first the initial model.
    - The client receives its group's model (d parameters), trains, and sends its update (d
      parameters).
    - M-step: a group's model becomes the mean of its updates.

    A change of a device's data during the run has no direct effect on the groups. Therefore
    ``fesem-mig``, FeSEM-MIG of FlexCFL's tables, is the same strategy.
    """

    Params: ClassVar[type[FeSEMParams]] = FeSEMParams
    State = FeSEMState
    state: FeSEMState

    async def on_start(self) -> None:
        groups = self.params.groups
        initial_model = self.server.models.initial
        initial = initial_model()
        self.state.last = [initial] * self.server.devices
        if self.params.as_published:  # separate draws: no two groups are equal
            self.state.models = [initial_model(1 + group) for group in range(groups)]
        else:
            self.state.models = [initial] * groups
        await super().on_start()

    async def before_asking(self) -> None:
        """Assign the selected clients to groups, before they receive their group's model.

        With ``follows = "published-code"`` a client joins the group whose model is nearest to its
        last model. With ``"paper"`` clients stay in their groups here, as they join the nearest
        group after the round; a client without a group joins group 0.
        """
        cohort = self.state.cohort
        if self.params.as_published:
            groups = await self._nearest_groups(cohort)
        else:
            groups = [self.group_of(device) or 0 for device in cohort]
        for device, group in zip(cohort, groups, strict=True):
            self.move(device, group, "e-step")

    async def _nearest_groups(self, devices: Sequence[int]) -> list[int]:
        """Find the group whose model is nearest to the last model that each device has sent.

        The distance is Euclidean; the initial model stands for the model of a device that has sent
        none. In runs without learning the group is random.

        Args:
            devices: device IDs.

        Returns:
            The group index of each device.
        """
        server = self.server
        models = self.state.models
        last_models = [self.state.last[device] for device in devices]
        if not server.models.learns:
            # for the memory forecast of ``fedsim check``, whose trial has no weights
            await server.models.note_skipped([*models, *last_models])
            return self.random_groups(len(devices), "e-step", self.state.round)
        server.compute("distances", len(devices), server.setting.parameters, len(models))
        weights = await server.models.values([*models, *last_models])
        if not devices:
            return []
        centers = weights[: len(models)]
        distances = _distances(weights[len(models) :], centers)
        groups: list[int] = np.argmin(distances, axis=1).tolist()
        return groups

    async def aggregate(self) -> None:
        for entry in self.state.received:
            self.state.last[entry["device"]] = entry["update"]
        if self.params.as_published:
            await super().aggregate()
        elif self.state.received:
            await self._move_centers()

    async def _move_centers(self) -> None:
        """Assign all clients to groups by their last models, then average each group's models.

        This is one step of Lloyd's algorithm (Algorithm 1 of the paper). The first time that enough
        clients have sent a model, it is a whole k-means. Clients that have sent no model are left
        out.
        """
        state = self.state
        received = state.received
        senders = sorted({*state.senders, *(entry["device"] for entry in received)})
        state.senders = senders
        groups = await self._e_step(senders)
        for device, group in zip(senders, groups, strict=True):
            self.move(device, group, "e-step")
        # An update now counts for the group that its client has joined, not for the group whose
        # model the client had received.
        for entry in received:
            entry["group"] = self.group_of(entry["device"])
        for group in sorted({*groups}):
            self._m_step(group)

    async def _e_step(self, senders: list[int]) -> list[int]:
        """Return the group of each sender's last model, by k-means or by the nearest group model.

        k-means is used once, when at least as many clients as groups have sent a model.
        """
        state = self.state
        server = self.server
        group_count = len(state.models)
        is_enough = len(senders) >= group_count
        is_first_time = is_enough and not state.begun
        state.begun |= is_enough
        if not is_first_time or not server.models.learns:
            return await self._nearest_groups(senders)
        last_models = await server.models.values([state.last[device] for device in senders])
        features = np.stack(last_models).astype(np.float64)
        server.compute("k-means", len(features), features.shape[1], group_count)
        groups: list[int] = kmeans(features, group_count, server.rng("k-means")).tolist()
        return groups

    def _m_step(self, group: int) -> None:
        """Set a group's model to the mean of its members' last models.

        Args:
            group: index of the group.
        """
        state = self.state
        members = [device for device in state.senders if state.group[device] == group]
        share = 1 / len(members)
        entries = [entry for entry in state.received if entry["group"] == group]
        if entries:
            self.record_aggregate(entries, [share] * len(entries), group=group)
        parts = [(state.last[device], share) for device in members]
        state.models[group] = self.server.models.mix(parts, otherwise=state.models[group])
