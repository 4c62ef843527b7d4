"""The question of selections that go by speed: FedCS and FLANP."""

from collections.abc import Sequence

from fedsim.federation import Contents, Device, Instruction, LocalResult
from fedsim.language.spec import Spec
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.selection import Selection


class BySpeed(Selection):
    """Candidates say how long they take to receive a model, to train for a round, and to send a model, as far as they know (s).

    That has 12 bytes (``resources``); the question has none.
    """

    def question(self, models: Sequence[Ref]) -> Contents:
        return {}

    def answer(self, device: Device, instruction: Instruction, result: LocalResult, params: Spec) -> Contents:
        training_s = device.epoch_s * getattr(params, "local_epochs", 1)
        return {"resources": [device.model_s("down"), training_s, device.model_s("up")]}
