"""Codecs that lose something: what they share, error feedback and the choice between changes and whole models."""

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from fedsim.arrays import Floats32
from fedsim.federation.codecs import Codec, Coded
from fedsim.learning import Learner, Ref
from fedsim.learning.functions import Function, pure


@pure
def added(models: list[Floats32]) -> NDArray[np.floating]:
    """The sum of two arrays."""
    return models[0] + models[1]


class Lossy(Codec):
    """A codec whose rule is a pure function: what arrives of one array.

    With ``error_feedback`` the device adds to a change what it has not sent before, and keeps what it does not send now (Stich,
    Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018; Karimireddy et al., "Error feedback fixes SignSGD", ICML
    2019, Algorithm 2): what was sent and what is kept are together what was meant, to the precision of float32. What is cut off
    on its way was not sent.

    Attributes:
        encodes: of an update either by how much it has changed that from which it was trained (``change``), which both sides
            have, or the whole of it (``model``). What has no such start, a model on its way down say, is encoded as it is.
        error_feedback: whether devices remember what they have not sent (d numbers a device that was ever asked). Of changes on
            their way up alone.
    """

    draws: ClassVar[bool] = False
    """Whether the rule is random."""

    encodes: Literal["change", "model"] = "change"
    error_feedback: bool = False

    @model_validator(mode="after")
    def _of_changes(self) -> Self:
        if self.error_feedback and self.encodes == "model":
            raise ValueError(
                "'error_feedback' is true and 'encodes' is 'model'; what was not sent is added to a 'change' alone"
            )
        return self

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        """The pure function of [array] and its constants; one that ``draws`` is given ``rng`` too."""
        raise NotImplementedError

    @property
    def lengthens(self) -> bool:
        return self.error_feedback or self.draws  # a random rule that keeps the mean adds variance

    @property
    def of_sums(self) -> Codec:
        """As under error feedback, which bounds what is left out."""
        return self.model_copy(update={"error_feedback": True})

    def loses_nothing(self, parameters: int) -> bool:
        """Whether everything arrives as it was sent."""
        return False

    def code(self, arithmetic: Learner, parameters: int, value: Ref, base: Ref | None, kept: Ref | None) -> Coded:
        if self.loses_nothing(parameters):
            return Coded(value)
        start = base if self.encodes == "change" else None
        change = value if start is None else arithmetic.mix([(value, 1.0), (start, -1.0)])
        meant = change if kept is None else arithmetic.apply(added, [change, kept])
        function, constants = self.rule(parameters)
        # The draw is named by what is sent, so that whoever gets the same model gets the same of it.
        stream = ("messages/codec", value.serial) if self.draws else None
        sent = arithmetic.apply(function, [meant], stream=stream, **constants)
        rest = None
        if self.error_feedback:
            # A training that diverged is not remembered: it would be sent again and again.
            nothing = arithmetic.mix([(value if start is None else start, 0.0)])
            rest = arithmetic.mix([(meant, 1.0), (sent, -1.0)], otherwise=nothing if kept is None else kept)
        return Coded(sent if start is None else arithmetic.apply(added, [start, sent]), rest)
