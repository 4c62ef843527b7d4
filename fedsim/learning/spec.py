"""The table ``[training]``: local training on a device."""

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from fedsim.language.spec import Spec
from fedsim.training import Penalised


class TrainingSpec(Spec):
    """Local mini-batch SGD. Each local solve begins with zero momentum; batches are shuffled again each epoch, none dropped.

    Attributes:
        lr: learning rate eta.
        batch_size: B; the last batch of an epoch may be smaller. Anything above a device's data means full batches.
        momentum: heavy-ball momentum, v <- momentum v + g.
        weight_decay: added to the gradient of every parameter, as weight_decay w.
        clip: the gradient of a batch's mean loss is scaled down to this norm, before all other terms; None: it is not. Such a
            training takes the plain solver.
        l2: the penalty l2 ||W||^2 on kernels (weights of dense layers and convolutions), not on biases: gradient 2 l2 W.
        l2_on: ``kernels``, or those of ``dense`` layers alone, as in FlexCFL's FEMNIST-CNN.
        lr_decay: the learning rate of round r is lr lr_decay^r.
        init: ``glorot`` (as in Keras: Glorot-uniform kernels, zero biases) or ``torch`` (uniform up to 1/sqrt(fan in), biases
            too). A module of the user's own initialises itself.
        solver: ``fast``: the fastest way that there is for the model; ``reference``: plain torch, with the same results up to
            rounding.
        device: where the arithmetic is done: ``cpu``, ``cuda`` or ``cuda:N``; checked when learning starts.
    """

    lr: float = Field(default=0.03, gt=0.0, le=1e6)
    batch_size: int = Field(default=10, ge=1, le=1_000_000_000)
    momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    weight_decay: float = Field(default=0.0, ge=0.0, le=1e6)
    clip: float | None = Field(default=None, gt=0.0, le=1e6)
    l2: float = Field(default=0.0, ge=0.0, le=1e6)
    l2_on: Penalised = "kernels"
    lr_decay: float = Field(default=1.0, gt=0.0, le=1.0)
    init: Literal["glorot", "torch"] = "glorot"
    solver: Literal["fast", "reference"] = "fast"
    device: str = "cpu"

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
            raise ValueError(f"'device' is {device!r}; allowed are cpu, cuda and cuda:N")
        return device

    @model_validator(mode="after")
    def _clips_on_a_cpu(self) -> Self:
        if self.clip is not None and self.device != "cpu":
            raise ValueError(f"'clip' is {self.clip:g} and 'device' {self.device!r}; gradients are clipped on a cpu only")
        return self

    def lr_in(self, round_number: int) -> float:
        """The learning rate of a round (from 0)."""
        return self.lr * self.lr_decay**round_number
