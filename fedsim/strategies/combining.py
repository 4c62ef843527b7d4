"""Combination of a round's updates to the next model."""

from collections.abc import Sequence
from typing import TypeVar

from fedsim.common.errors import SimulationError
from fedsim.federation import Server
from fedsim.learning.refs import Ref
from fedsim.strategies.base import Strategy
from fedsim.strategies.parts.aggregation import Aggregation, Entry
from fedsim.strategies.round_params import RoundParams
from fedsim.strategies.round_state import SynchronousState
from fedsim.strategies.state import new_state, state_of_slot

S = TypeVar("S", bound=RoundParams)


class Combining(Strategy[S]):
    """Base of strategies in rounds, with the combination of a round's updates to the next model.

    The aggregation (``strategy.aggregation``) combines updates, and the server optimiser
    (``strategy.server``) moves the model towards the combined updates. A strategy without these
    keys computes the next model itself, and calls ``record_aggregate``.
    """

    state: SynchronousState

    def __init__(self, params: S, server: Server) -> None:
        super().__init__(params, server)
        self._aggregation = params.aggregated_by
        self._optimiser = params.optimised_by
        self.state.selection = new_state(self._selection)

    def weights(self, entries: Sequence[Entry]) -> list[float]:
        """Return the weight of each update; by default the aggregation's weights.

        If the selection may draw a client several times, the weight of the client's update is
        multiplied by the count of its draws.

        Args:
            entries: the updates; at least one.

        Returns:
            Weights that sum to 1.
        """
        weights = self._needed_aggregation.weights(entries)
        draws = self._draws(entries)
        if draws is None:  # the selection draws no client more than once
            return weights
        scaled = [weight * count for weight, count in zip(weights, draws, strict=True)]
        return [weight / sum(scaled) for weight in scaled]

    def _draws(self, entries: Sequence[Entry]) -> list[int] | None:
        """Return how often each update's client was drawn for the round, in the order of ``entries``.

        None if the selection draws no client more than once.
        """
        selection = self._selection
        if selection is None or not selection.repeats:
            return None
        selection_state = self.state.selection
        return [selection.draws_of(selection_state, entry["device"]) for entry in entries]

    async def next_model(
        self, model: Ref, entries: list[Entry], slot: int = 0, **record: object
    ) -> Ref:
        """Return the next model, by the scenario's aggregation and server optimiser.

        The model is returned as a name (``Ref``): it is computed, with the trainings on which it
        depends, when its weights are needed, such as for a test. The step is recorded as
        ``aggregate``. ``Params`` must have the keys ``aggregation`` and ``server``, as
        ``AggregatingParams`` and ``CombiningParams`` have.

        Args:
            model: the present model.
            entries: the updates, such as ``state["received"]``; at least one.
            slot: index of the model if there are several; aggregation and optimiser have a state
                for each index.
            record: additional fields of the record ``aggregate``.

        Returns:
            The next model [d].
        """
        # a private aggregation divides by a count that does not depend on which clients answered
        aggregation = self._needed_aggregation.for_rounds_of(self._expected_updates)
        weights = await aggregation.weigh(self.server, entries, self.weights(entries))
        self.record_aggregate(entries, weights, **record)
        aggregation_state = state_of_slot(self.state.aggregation, slot, aggregation)
        combined = aggregation.combine(self.server, aggregation_state, entries, weights, model)
        return self.advance(model, combined, slot)

    @property
    def _expected_updates(self) -> int:
        """Count of updates in a round if no client disconnects.

        It is the size of the cohort, or the count of updates at which the round ends.
        """
        cohort = self.params.cohort_size(self.server.devices)
        if self.params.traits.late_goes_on:  # updates of late tasks are aggregated too
            return cohort
        return int(min(cohort, self.params.enough))

    def advance(self, model: Ref, aggregated: Ref, group: int = 0) -> Ref:
        """Return the next model: one step of the server optimiser towards the aggregated model.

        If there is no server optimiser, ``aggregated`` is returned.

        Args:
            model: the present model.
            aggregated: the model that the aggregation made of the updates.
            group: index of the model if there are several, as ``slot`` of ``next_model``; the
                optimiser has a state for each index.
        """
        if self._optimiser is None:
            return aggregated
        optimiser_state = state_of_slot(self.state.optimiser, group, self._optimiser)
        return self._optimiser.step(self.server, optimiser_state, model, aggregated)

    def record_aggregate(
        self, entries: Sequence[Entry], weights: Sequence[float], **record: object
    ) -> None:
        """Record which updates were combined into a model.

        ``next_model`` calls it; a strategy that does not call ``next_model`` calls it by itself.

        Args:
            entries: the updates.
            weights: the weight of each update.
            record: additional fields of the record ``aggregate``.
        """
        tasks = [entry["task"] for entry in entries]
        if self._aggregation is not None:
            record |= self._aggregation.record_fields(len(entries))
        draws = self._draws(entries)
        if draws is not None:
            record["draws"] = draws
        self.server.emit(
            "aggregate", round=self.state.round, tasks=tasks, weights=weights, **record
        )

    def _privacy_spent(self) -> dict[str, float]:
        """Return the privacy budget spent in all rounds so far, for the record of this round.

        The draw of the round's clients, on which the budget depends, is first counted in
        ``state.draws``.

        Returns:
            Field of the record ``round`` -> value, such as ``epsilon``; empty if the aggregation
            keeps no privacy account.
        """
        aggregation = self._aggregation
        if aggregation is None or not aggregation.accounts:
            return {}
        state = self.state
        drawn = state.drawn
        if drawn is None:
            drawn = (1, 1)  # no uniform draw: every device counts as drawn, 1 of 1
        state.draws[drawn] = state.draws.get(drawn, 0) + 1
        return aggregation.spent(state.draws, self.server.devices)

    @property
    def _needed_aggregation(self) -> Aggregation:
        """The aggregation that the scenario names by ``strategy.aggregation``.

        Raises:
            SimulationError: the strategy's ``Params`` have no key ``aggregation``.
        """
        if self._aggregation is not None:
            return self._aggregation
        params = type(self).Params.__name__
        bases = "AggregatingParams or CombiningParams"
        raise SimulationError(
            f"{type(self).__name__}.next_model and weights go by the keys 'aggregation' "
            f"and 'server', which {params} has not; derive {params} from {bases}, or mix the "
            "models in 'aggregate' and call record_aggregate"
        )
