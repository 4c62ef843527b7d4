"""Names of the timers of a strategy in rounds, which ``Synchronous.on_timer`` handles."""

from typing import Final


class RoundTimer:
    """Names of the timers of a round; ``Synchronous`` lists the phases that they begin and end.

    Attributes:
        RETRY: The round is opened again, as too few clients were available.
        ROUND: The next round begins by the schedule ``every``.
        QUESTIONS: The selection waits no longer for the answers of candidates.
        ASK: Devices have processed the shifts of the round, and the server prepares its messages.
        COMPUTED: The server has computed its messages to the cohort.
        SECURE_PHASE: A message phase of secure aggregation ends.
        DEADLINE: Open tasks of the round are ended as late.
        UNMASKED: The server has unmasked the sum of the updates.
        AGGREGATED: The server has computed the next models.
    """

    RETRY: Final = "retry"
    ROUND: Final = "round"
    QUESTIONS: Final = "questions"
    ASK: Final = "ask"
    COMPUTED: Final = "computed"
    SECURE_PHASE: Final = "secure-phase"
    DEADLINE: Final = "deadline"
    UNMASKED: Final = "unmasked"
    AGGREGATED: Final = "aggregated"
