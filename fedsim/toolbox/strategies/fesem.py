"""FeSEM: each client belongs to the group whose model is nearest to its own (Xie et al., 2020)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.spec import Epochs
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.toolbox.clustering.algorithms import kmeans
from fedsim.toolbox.strategies.grouped import Grouped, GroupedParams


class FeSEMParams(GroupedParams):
    """Parameters of FeSEM, in addition to ``GroupedParams``.

    Attributes:
        aggregation: ``mean``, as in the paper; ``weighted``, by samples; ``first``, as in the
            published code of FlexCFL.
        as: ``published-code``: that of FlexCFL, see ``FeSEM``. ``paper`` (Algorithm 1): after each
            round every client that has sent a model joins the group nearest to it, whose model
            becomes the mean of its members' last ones; k-means makes the first groups.
    """

    instead: ClassVar[Mapping[str, str]] = {**GroupedParams.instead, "centers": "as"}
    sweeps: ClassVar[bool] = True
    kind: Literal["fesem", "fesem-mig"] = "fesem"
    clients_per_round: int = Field(default=20, ge=1)
    local_epochs: Epochs = 10
    aggregation: AggregationSpec = Mean()

    @model_validator(mode="after")
    def _points_have_a_mean(self) -> Self:
        if not self.as_published and (self.aggregation.kind != "mean" or self.server is not None):
            raise ValueError(
                "'as' is 'paper', where a group's model is the mean of its points; "
                "'aggregation' must be 'mean'"
            )
        return self


class FeSEM(Grouped[FeSEMParams]):
    """Federated stochastic expectation maximisation.

    Source: Xie et al., "Multi-center federated learning" (2020), as in the published code of
    FlexCFL, by distances of whole models.

    E-step, at the server: each selected client joins the group whose model is nearest (Euclidean)
    to its own last one, at first the initial one. It receives its group's model (d parameters),
    trains, and sends its update (d parameters). M-step: a group's model becomes the mean of its
    updates. Shifts of data change no group: FeSEM-MIG, so called in FlexCFL's tables, is the same
    (``fesem-mig``).
    """

    Params: ClassVar[type[FeSEMParams]] = FeSEMParams

    async def on_start(self) -> None:
        groups = self.params.groups
        initial = self.server.models.initial()
        draw = self.server.models.initial
        self.state |= {
            "models": [initial] * groups,
            "last": [initial] * self.server.devices,
            "known": [],
            "begun": False,
        }
        if self.params.as_published:  # apart from the clients' common start
            self.state["models"] = [draw(1 + group) for group in range(groups)]
        await super().on_start()

    async def before_asking(self) -> None:
        cohort = self.state["cohort"]
        groups = self.state["group"]
        nearest = (
            await self._nearest(cohort)
            if self.params.as_published
            else [max(groups[device], 0) for device in cohort]
        )
        for device, group in zip(cohort, nearest, strict=True):
            self.move(device, group, "e-step")

    async def _nearest(self, devices: Sequence[int]) -> list[int]:
        server = self.server
        models = self.state["models"]
        if not server.models.learns:
            return self.random_groups(len(devices), "e-step", self.state["round"])
        server.compute("distances", len(devices), server.setting.parameters, len(models))
        values = await server.models.values(
            [*models, *(self.state["last"][device] for device in devices)]
        )
        centers = values[: len(models)]
        sent = values[len(models) :]
        with np.errstate(all="ignore"):
            distances = [
                [np.linalg.norm(own.astype(np.float64) - center) for center in centers]
                for own in sent
            ]
        return (
            np.argmin(np.nan_to_num(distances, nan=np.inf, posinf=np.inf), axis=1).tolist()
            if sent
            else []
        )

    async def aggregate(self) -> None:
        for entry in self.state["received"]:
            self.state["last"][entry["device"]] = entry["update"]
        await (super().aggregate() if self.params.as_published else self._move_centers())

    async def _move_centers(self) -> None:
        """One step of Lloyd's algorithm on all models that clients have sent; the first time a
        whole k-means.
        """
        state = self.state
        server = self.server
        if not state["received"]:
            return
        known = state["known"] = sorted(
            {*state["known"], *(entry["device"] for entry in state["received"])}
        )
        last = state["last"]
        groups = len(state["models"])
        if server.models.learns and len(known) >= groups and not state["begun"]:
            rows = np.stack(await server.models.values([last[device] for device in known])).astype(
                np.float64
            )
            server.compute("k-means", len(rows), rows.shape[1], groups)
            nearest = kmeans(rows, groups, server.rng("k-means")).tolist()
        else:
            nearest = await self._nearest(known)
        state["begun"] |= len(known) >= groups
        for device, group in zip(known, nearest, strict=True):
            self.move(device, group, "e-step")
        for entry in state["received"]:
            entry["group"] = self.group_of(entry["device"])
        for group in sorted({*nearest}):
            points = [
                last[device] for device, own in zip(known, nearest, strict=True) if own == group
            ]
            entries = [entry for entry in state["received"] if entry["group"] == group]
            if entries:
                self.record_aggregate(entries, [1 / len(points)] * len(entries), group=group)
            parts = [(point, 1 / len(points)) for point in points]
            state["models"][group] = server.models.mix(parts, otherwise=state["models"][group])
