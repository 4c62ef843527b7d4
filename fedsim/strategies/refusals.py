"""Reasons why a strategy refuses settings of a scenario, and a check of ``[strategy]`` by them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fedsim.strategies.parts.aggregation import PROTECTS, Aggregation, Protection
from fedsim.strategies.parts.selection import Selection


@dataclass(frozen=True, kw_only=True)
class Reasons:
    """Reasons why a strategy refuses settings, as texts for the user; None if it accepts them.

    Attributes:
        private_aggregation: reason against an aggregation that bounds how far one update can move a
            model, for example that the strategy also uses answers outside the aggregation.
        robust_aggregation: reason against an aggregation that protects from malicious devices.
        privacy_account: reason against an aggregation that keeps a privacy account
            (``Aggregation.accounts``), as the account would miss what the strategy reveals.
        sum_alone: reason against ``secure_aggregation``, which shows the server only the sum of
            updates.
        training_limit: reason against a deadline that bounds one training (``deadline.since =
            "download"``), for example that a client trains several times in a round.
        other_steps: reason against trainers whose steps are not along a gradient.
        no_accuracy: a key and its value that need accuracies, as text such as
            "strategy.selection is 'favor'"; refused with an objective that has no accuracy.
        resuming: reason against checkpoints, which says why a run cannot be resumed.
        by_device: key of ``[population.local]`` -> reason why it must be equal for all devices.
    """

    private_aggregation: str | None = None
    robust_aggregation: str | None = None
    privacy_account: str | None = None
    sum_alone: str | None = None
    training_limit: str | None = None
    other_steps: str | None = None
    no_accuracy: str | None = None
    resuming: str | None = None
    by_device: Mapping[str, str] = field(default_factory=dict)

    def against(self, protection: Protection) -> str | None:
        """Return the reason why the strategy refuses aggregations that offer a protection.

        Args:
            protection: ``private``: the aggregation bounds how far one update can move a model;
                ``robust``: it protects the model from malicious devices.

        Returns:
            Text for the user, the attribute ``private_aggregation`` or ``robust_aggregation``; None
            if the strategy accepts such aggregations.
        """
        return self.private_aggregation if protection == "private" else self.robust_aggregation

    def with_selection(self, selection: Selection | None) -> "Reasons":
        """Return the reasons of the strategy together with the reasons of its selection of clients.

        If both have a reason against the same setting, the result has the strategy's reason.

        Args:
            selection: the selection of clients; None if the strategy selects by itself.
        """
        if selection is None:
            return self
        why_no_account = None
        if selection.looks_at_data:
            why_no_account = (
                f"the selection {selection.kind!r} goes by what clients find in their data, which "
                "no account counts"
            )
        why_accuracy = None
        if selection.needs_accuracy:
            why_accuracy = f"strategy.selection is {selection.kind!r}"
        return replace(
            self,
            privacy_account=self.privacy_account or why_no_account,
            sum_alone=self.sum_alone or selection.why_single_updates,
            other_steps=self.other_steps or selection.counts_steps,
            no_accuracy=self.no_accuracy or why_accuracy,
        )

    def refusals(
        self,
        aggregation: Aggregation | None,
        selection: Selection | None,
        *,
        bounds_training: bool,
        is_secured: bool,
    ) -> Iterator[str]:
        """Yield a message for each combination of keys of ``[strategy]`` that is refused.

        Args:
            aggregation: rule that combines updates; None if there is none.
            selection: selection of clients; None if the strategy selects by itself.
            bounds_training: whether a deadline bounds each client's training.
            is_secured: whether the updates are hidden by secure aggregation.

        Yields:
            The messages for the user, in the order in which they are shown.
        """
        all_reasons = self.with_selection(selection)
        if aggregation is not None:
            yield from all_reasons._refusals_of(aggregation)
        if bounds_training and self.training_limit:
            yield (
                "'deadline.since' is 'download', which bounds one training, but "
                f"{self.training_limit}; allowed is 'round'"
            )
        # why the server has to see each update, and not only their sum: the first reason that the
        # strategy, the aggregation or the selection has
        why_single_updates = self.sum_alone
        if aggregation is not None and not why_single_updates:
            why_single_updates = aggregation.why_single_updates
        if not why_single_updates:
            why_single_updates = all_reasons.sum_alone
        if is_secured and why_single_updates:
            yield (
                "'secure_aggregation' is given, by which the server learns the sum of updates "
                f"alone, but {why_single_updates}"
            )

    def _refusals_of(self, aggregation: Aggregation) -> Iterator[str]:
        """Yield a message for the aggregation's aim, and for its privacy account, if refused."""
        protection = aggregation.protection
        if protection is not None and self.against(protection):
            yield (
                f"'aggregation' is {aggregation.kind!r}, which {PROTECTS[protection]}, but "
                f"{self.against(protection)}; allowed are 'weighted' and 'mean'"
            )
        if aggregation.accounts and self.privacy_account:
            yield f"'aggregation.account' is true, but {self.privacy_account}; allowed is false"
