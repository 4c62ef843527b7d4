"""``[evaluation]``: when and how models are tested."""

from typing import Literal

from pydantic import Field

from fedsim.common.spec import Spec


class EvaluationSpec(Spec):
    """``[evaluation]``: when and how models are tested, which takes no simulated time."""

    every: int = Field(default=1, ge=1)
    """count of rounds from one test to the next; the last round is always tested."""
    from_round: int = Field(default=0, ge=0)
    """first round (from 0) that is tested; FlexCFL tests from the round in which each device has
    been selected, and so has a group.
    """
    score: Literal["pooled", "device-mean", "historical"] | None = None
    """definition of accuracy. ``pooled``: right answers over all devices' test samples;
    ``device-mean``: mean of the devices' accuracies; ``historical``: pooled, with each model tested
    on all devices that it has ever served (as FlexCFL's text says, unlike its code). None: the
    strategy's definition.
    """
    train_loss: Literal["last", "first"] = "last"
    """local epoch whose loss is a client's training loss: the ``last``, or the ``first`` (published
    code of FlexCFL; its figures are higher), which is computed again. The last epoch is used in any
    case for updates without epochs, and for updates whose weights the strategy has read.
    """
    keep_best: bool = False
    """whether the run folder also has the models of the best test, by ``stop.monitor``, in
    ``best/``.
    """
    cosines: bool = False
    """whether the cosines between the updates of a round are recorded (``kinds_of_pairs``), as
    in Fig. 3 of the CFL paper.
    """
    fine_tune_epochs: int = Field(default=0, ge=0, le=100_000)
    """epochs that each device trains its model after the run, for an additional test
    (``accuracy.fine_tuned``); 0: no such test.
    """

    def is_due(self, round_number: int, *, is_last: bool) -> bool:
        """Whether models are tested after a round.

        Args:
            round_number: the round, from 0.
            is_last: whether the round is the last one.
        """
        return is_last or (round_number >= self.from_round and (round_number + 1) % self.every == 0)

    def tests(self, rounds: int) -> int:
        """Return the count of tests in a run of ``rounds`` rounds."""
        if not rounds:
            return 0
        regular_tests = max(0, rounds // self.every - self.from_round // self.every)
        is_last_regular = rounds % self.every == 0 and rounds > self.from_round
        # the last round is always tested
        return regular_tests if is_last_regular else regular_tests + 1
