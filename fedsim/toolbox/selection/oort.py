"""Oort: clients of high loss that are fast, and some that are new (Lai et al., 2021)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats
from fedsim.common.spec import OnlyWith
from fedsim.common.units import PositiveSeconds
from fedsim.federation import (
    Contents,
    Device,
    Header,
    Instruction,
    Lazy,
    LocalResult,
    Server,
    TaskEnd,
)
from fedsim.strategies.parts.selection import Among, Ids, Selection
from fedsim.strategies.state import State
from fedsim.toolbox.selection import draw_weighted

# pacer of the published code: its first percentile, and the step, which is also the least
# percentile
_FIRST_PERCENTILE = 30.0
_PERCENTILE_STEP = 5.0
_MOST_TASKS = 10  # a client with this count is asked only if too few other clients are available
_NO_ANSWER = (0.0, 0, 0.0)  # utility U, last round L and duration D of a client without an answer


@dataclass
class OortState(State):
    """State of the selection ``oort``: each client's reports and durations, and the pacer.

    The pacer is the rule that sets the preferred duration of a task.

    Attributes:
        round: R, the index of the open round, from 1.
        known: Client ID -> (utility U, round L of its last report, duration D (s)), see ``Oort``. U
            and L are 0 before the client's first report.
        asked: Client ID -> how many times the client was asked.
        begun: Client ID -> time (s) at which its open task began.
        reports: Client ID -> (sample count, training loss) reported in the open round.
        harvest: Total utility of each round in the pacer's windows.
        preferred: Preferred duration T (s) of the paper's pacer; None before the first round.
        percentile: Percentile of durations by which the published code's pacer sets T.
    """

    round: int = 0
    known: dict[int, tuple[float, int, float]] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    reports: dict[int, tuple[int, Any]] = field(default_factory=dict)
    harvest: list[float] = field(default_factory=list)
    preferred: float | None = None
    percentile: float = _FIRST_PERCENTILE


def _sort_by_history(
    state: OortState, devices: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Sort devices by whether they have reported a loss, and by how often they were asked.

    Args:
        state: memory of the selection.
        devices: IDs of available devices, in random order.

    Returns:
        IDs of three kinds of devices. First the devices that have reported. Then the devices that
        have not: devices that were never asked, followed by devices whose task was late, the
        fastest first. Last the devices that were asked ten times or more, whether or not they have
        reported.
    """
    often_asked = list[int]()
    reporters = list[int]()
    newcomers = list[int]()
    for device in devices:
        _utility, last_report, _duration_s = state.known.get(device, _NO_ANSWER)
        if state.asked.get(device, 0) >= _MOST_TASKS:
            often_asked.append(device)
        elif last_report:
            reporters.append(device)
        else:
            newcomers.append(device)

    def late_duration_s(device: int) -> float:
        _utility, _last_report, duration_s = state.known.get(device, _NO_ANSWER)
        return duration_s  # 0 if the device was never asked

    newcomers.sort(key=late_duration_s)
    return reporters, newcomers, often_asked


class Oort(Selection):
    """Clients with high loss and short tasks, and some that have never reported.

    Source: Lai et al., "Oort: efficient federated learning via guided participant selection" (OSDI
    2021), Algorithm 1. The statistical utility U of a client is its sample count times the root
    mean square of the samples' losses. In place of the latter this class uses the mean loss of the
    client's last epoch, which the client sends with its update (4 bytes). In round R the utility of
    a client that last reported in round L, and whose last task took the time D, is

        Util = (min(U, the ``clip`` quantile of all) + sqrt(0.1 ln R / L)) (T / D)^penalty,

    with the last factor only if D > T, the preferred duration of a task.

    The cohort of a round has two parts:

    - A share of 1 - epsilon are k clients that have reported. Let U_k be the k-th highest Util. The
      k clients are drawn with probabilities proportional to Util from the clients whose Util is at
      least ``cutoff`` U_k.
    - The rest are clients that have never reported: first clients that were never asked, at random,
      then clients whose tasks were late, the fastest first.

    epsilon is 0.9 in the first round, and falls by 2 % a round to ``least_exploration``. A client
    that was asked ten times is asked again only if too few other clients are available.

    The pacer sets T. It compares windows, each of ``window`` rounds. The utility of a window is the
    sum of U over its reports.

    - With ``pacer = "paper"``, T begins at ``pacer_step``. It grows by ``pacer_step`` after each
      round at which the last window has less utility than the window before.
    - With ``pacer = "published-code"``, T is a percentile of the durations D of all clients that
      have reported, first the 30th. At the end of each window the percentile grows by 5 if the
      utilities of this window and the one before differ by at most 10 %. It falls by 5 if they
      differ by at least five times the utility of the window before. At the 100th percentile no
      client is too slow.

    The duration of a late task is used as the client's D, but is no report. Tasks of clients that
    the strategy has asked without this selection, such as in FlexCFL's first rounds, are ignored.
    In runs without learning all losses are 1. In strategies without rounds, R counts the draws of
    clients, and the pacer counts versions of the model instead of rounds.

    Attributes:
        pacer: rule by which T changes: the ``paper``'s, or the ``published-code``'s.
        pacer_step: Delta, the initial T and its increase (s); only for the paper's pacer.
        window: W, the count of rounds whose utility the pacer sums.
        penalty: alpha, the exponent of T / D.
        least_exploration: the least epsilon.
        cutoff: c, as a share of U_k: clients with a lower Util are not drawn.
        clip: the quantile of all U to which larger U are reduced.
        scale: ``plain``: the clipped U are used as they are. ``unit``: they are first scaled to the
            range from 0 to 1, as in the published code. The sqrt term, a bonus for a long time
            since the last report, is small against U that are not scaled.
    """

    kind: Literal["oort"] = "oort"
    pacer: Literal["paper", "published-code"] = "paper"
    pacer_step: Annotated[PositiveSeconds | None, OnlyWith("pacer", values=("paper",))] = None
    window: int = Field(default=20, ge=1)
    penalty: float = Field(default=2.0, ge=0.0, le=100.0)
    least_exploration: float = Field(default=0.2, ge=0.0, le=1.0)
    cutoff: float = Field(default=0.95, ge=0.0, le=1.0)
    clip: float = Field(default=0.95, gt=0.0, le=1.0)
    scale: Literal["plain", "unit"] = "plain"

    @model_validator(mode="after")
    def _check_pacer_step(self) -> Self:
        if self.pacer == "paper" and self.pacer_step is None:
            raise ValueError(
                "'pacer_step' is missing; allowed is a time, such as '10 s', or pacer = "
                "'published-code'"
            )
        return self

    State = OortState

    def select(
        self,
        server: Server,
        state: OortState,
        count: int,
        ids: Ids,
        among: Among = None,
    ) -> list[int]:
        """Select clients that have reported a loss, by their utility, and some that have not.

        Of the clients without a report, clients that were never asked come first, at random; then
        clients whose tasks were late, the fastest first. Clients that were asked ten times are
        added only if too few other clients are available.

        Args:
            server: the run's server.
            state: the selection's memory, with the clients' reports.
            count: largest count of clients.
            ids: integers that name the random draws of this selection, so that each selection has
                its own. The first is the index of the round from 0, from which epsilon and the
                utilities are computed; strategies without rounds count their draws of clients
                instead. Further integers follow if a round selects several times.
            among: IDs of the devices to select from; None: all devices.

        Returns:
            At most ``count`` device IDs.
        """
        state.round = ids[0] + 1  # ids[0] counts rounds from 0, Oort's R from 1
        available = server.clients.sample(server.devices, "select", *ids, among=among)
        reporters, newcomers, often_asked = _sort_by_history(state, available)
        planned_reporters = round(count * (1 - self.epsilon(state.round)))
        # more than planned if there are too few newcomers
        reporter_count = min(len(reporters), max(planned_reporters, count - len(newcomers)))
        cohort = self._draw_best(server, state, reporter_count, reporters, ids)
        cohort += newcomers[: count - len(cohort)]
        cohort += often_asked[: count - len(cohort)]
        for device in cohort:
            state.asked[device] = state.asked.get(device, 0) + 1
            state.begun[device] = server.now
        return cohort

    def epsilon(self, number: int) -> float:
        """Return the share of a round's cohort that is reserved for clients that never reported.

        The share, epsilon, is 0.9 in the first round, and falls by 2 % a round to
        ``self.least_exploration``.

        Args:
            number: the round, from 1.
        """
        return max(0.9 * 0.98 ** (number - 1), self.least_exploration)

    def utilities(
        self, entries: Sequence[Sequence[float]], round_number: int, preferred: float
    ) -> Floats:
        """Compute the utility by which Oort ranks clients that have reported their training losses.

        With the symbols below, the utility is (min(U, the ``clip`` quantile of all U) + sqrt(0.1 ln
        R / L)) x (T / D)^penalty, with the last factor only if D > T. If ``scale`` is ``unit``, the
        clipped U are first scaled to the range from 0 to 1.

        Args:
            entries: for each client the statistical utility U (samples x loss), the round L of its
                last report, and the duration D (s) of its last task, [n, 3].
            round_number: R, the index of the round, from 1.
            preferred: T, the preferred duration of a task (s).

        Returns:
            The utility of each client, float64 [n].
        """
        utility, last_round, duration_s = np.array(entries, dtype=np.float64).T
        utility = np.minimum(utility, np.quantile(utility, self.clip, method="lower"))
        if self.scale == "unit":
            spread = max(float(np.ptp(utility)), 1e-4)  # not 0 if all U are equal
            utility = (utility - utility.min()) / spread
        is_slow = duration_s > preferred
        # the maximum avoids a division by 0
        speed = np.where(is_slow, preferred / np.maximum(duration_s, 1e-9), 1.0)
        penalty_factor = speed**self.penalty
        absence_bonus = np.sqrt(0.1 * math.log(round_number) / last_round)
        return np.asarray((utility + absence_bonus) * penalty_factor)

    def _draw_best(
        self, server: Server, state: OortState, count: int, reporters: list[int], ids: Ids
    ) -> list[int]:
        """Draw ``count`` of ``reporters``, with probabilities proportional to Oort's utility.

        Only clients whose utility is at least ``self.cutoff`` times the ``count``-th highest
        utility are drawn.

        Args:
            server: the run's server.
            state: the selection's memory, with the clients' reports.
            count: how many clients to draw; at most the number of ``reporters``.
            reporters: IDs of the available clients that have reported training losses.
            ids: integers that name the random stream of the draw.

        Returns:
            IDs of the drawn clients.
        """
        if not count:
            return []
        reports = [state.known[device] for device in reporters]
        utility = self.utilities(reports, state.round, self.preferred(state))
        # positions in ``reporters``, the highest utility first
        order = np.argsort(-utility, kind="stable")
        least_utility = self.cutoff * utility[order[count - 1]]  # c U_k, with k = ``count``
        eligible = order[utility[order] >= least_utility]
        variates = server.rng("exploit", *ids).standard_exponential(len(eligible))
        drawn = eligible[draw_weighted(utility[eligible], count, variates)]
        return [reporters[position] for position in drawn.tolist()]

    def on_task_end(self, server: Server, state: OortState, message: TaskEnd) -> None:
        """Store the duration of a client's task, and the loss that the client has reported.

        ``learn`` reads the loss later. For a late task only the duration is stored: the time until
        its end, or the client's previous duration if that is longer. Nothing is stored for a lost
        task, and for a task that does not follow from ``select``.

        Args:
            server: the run's server.
            state: the selection's memory, which is changed.
            message: the ended task.
        """
        device = message.device
        if device not in state.begun:  # the strategy has asked it without this selection
            return
        took_s = server.now - state.begun.pop(device)
        utility, last_round, duration_s = state.known.get(device, _NO_ANSWER)
        if message.outcome == "late":  # the whole task would have taken longer than ``took_s``
            state.known[device] = (utility, last_round, max(duration_s, took_s))
        elif "training-loss" in message.contents:
            state.known[device] = (utility, last_round, took_s)
            state.reports[device] = (message["trained-on"], message["training-loss"])

    async def learn(self, server: Server, state: OortState) -> None:
        """Store the utility of each client that has reported a loss in the round, and adapt T.

        Called after a round, or in strategies without rounds after a version of the model. A
        client's utility is its samples times its loss, 0 if the loss is not finite. T, the
        preferred duration of a task, is adapted to the sum of the utilities by ``paced`` or
        ``percentile``.

        Args:
            server: the run's server.
            state: the selection's memory, which is changed.
        """
        reports = state.reports
        state.reports = {}
        harvest = 0.0  # total utility of the round's clients
        losses = [1.0] * len(reports)  # in runs without learning
        if server.models.learns:
            values = await server.models.numbers([loss for _, loss in reports.values()])
            losses = [float(value[0]) for value in values]
        for device, loss in zip(reports, losses, strict=True):
            samples, _ = reports[device]
            utility = samples * loss if math.isfinite(loss) else 0.0
            harvest += utility
            _utility, _last_round, duration_s = state.known[device]
            state.known[device] = (utility, state.round, duration_s)
        if self.pacer_step is None:  # pacer of the published code
            state.percentile = self.percentile(state.harvest, harvest, state.percentile)
        else:
            preferred = self.pacer_step if state.preferred is None else state.preferred
            state.preferred = self.paced(state.harvest, harvest, preferred)

    def preferred(self, state: OortState) -> float:
        """Return T, the preferred duration of a client's task in the open round (s).

        A client that took longer is less likely to be selected. With ``pacer = "published-code"``
        T is infinite if no client has reported yet, and at the 100th percentile.

        Args:
            state: the selection's memory, with the durations of the clients' tasks.
        """
        if self.pacer_step is not None:
            return self.pacer_step if state.preferred is None else state.preferred
        durations_s = list[float]()
        for _utility, last_round, duration_s in state.known.values():
            if last_round:  # 0 if the client has never reported
                durations_s.append(duration_s)
        durations_s.sort()
        share = state.percentile / 100
        if not durations_s or share >= 1:
            return math.inf
        position = min(int(len(durations_s) * share), len(durations_s) - 1)
        return durations_s[position]

    def percentile(self, history: list[float], harvest: float, before: float) -> float:
        """Adapt the percentile of clients' durations that sets T, as in Oort's published code.

        T is the duration of a task (s) above which a client is less likely to be selected. The
        percentile changes after each ``self.window`` rounds: it grows by 5 if the total utility of
        these rounds differs from the previous window's by at most 10 %, and falls by 5 if the
        difference is at least five times the previous total.

        Args:
            history: total utility of each earlier round of the previous and the present window;
                changed in place. ``harvest`` is appended; when both windows are full, the older
                window is removed.
            harvest: total utility of the round's clients.
            before: the percentile before the round.

        Returns:
            The next percentile, from 5 to 100.
        """
        history.append(harvest)
        if len(history) < 2 * self.window:  # the present window has further rounds
            return before
        earlier = sum(history[: self.window])
        recent = sum(history[self.window :])
        del history[: self.window]  # the present window becomes the previous one
        change = abs(recent - earlier)
        if change <= 0.1 * earlier:
            return min(100.0, before + _PERCENTILE_STEP)
        if change >= 5 * earlier:
            return max(_PERCENTILE_STEP, before - _PERCENTILE_STEP)
        return before

    def paced(self, history: list[float], harvest: float, preferred: float) -> float:
        """Adapt T, the duration of a task above which a client is less likely to be selected.

        As in the paper's pacer, T grows by ``self.pacer_step`` if the last ``self.window`` rounds
        have less total utility than the same number of rounds before.

        Args:
            history: total utility of each earlier round; changed in place. ``harvest`` is appended,
                and rounds before both windows are removed.
            harvest: total utility of the round's clients.
            preferred: T before the round (s).

        Returns:
            The next T (s).
        """
        history.append(harvest)
        del history[: -2 * self.window]
        if len(history) < 2 * self.window:
            return preferred
        earlier = sum(history[: self.window])
        recent = sum(history[self.window :])
        if earlier <= recent:
            return preferred
        return preferred + (self.pacer_step or 0.0)

    def report(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        if result.trained is None:
            return {}
        return {"trained-on": Header(result.samples), "training-loss": Lazy("loss", result.trained)}
