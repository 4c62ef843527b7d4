"""pFedMe: personal models around local ones, which become the global one (T Dinh et al., 2020)."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.training import Training
from fedsim.federation import Contents, Device, Instruction, LocalResult, PreviousResult
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.strategies.round_params import AggregatingParams
from fedsim.toolbox.strategies.personal import OwnModelClient, Personal
from fedsim.world.task import Computation, Train


class PFedMeParams(AggregatingParams):
    """Parameters of pFedMe; its server's beta is the learning rate of ``server = "sgd"``.

    See also ``AggregatingParams``.
    """

    trains_more: ClassVar[str] = "with pFedMe a client trains 'local_rounds' times"
    kind: Literal["pfedme"] = "pfedme"
    lam: float = Field(default=15.0, gt=0.0, le=1e6)
    """lambda, how strongly a personal model is held to the local one."""
    local_rounds: int = Field(default=20, ge=1, le=10_000)
    """R, each with a batch of its own."""
    steps: int = Field(default=5, ge=1, le=100_000)
    """K, of SGD on that batch towards the personal model, at the learning rate of
    ``[training]``.
    """
    eta: float = Field(default=0.005, gt=0.0, le=1e6)
    """learning rate of the local model."""
    aggregation: AggregationSpec = Mean()

    @model_validator(mode="after")
    def _rounds_not_epochs(self) -> Self:
        if self.local_epochs != 1:
            raise ValueError(
                f"'local_epochs' is {self.local_epochs}, but pFedMe's clients train for "
                "'local_rounds' batches; give that"
            )
        return self


class PFedMeClient(OwnModelClient[PFedMeParams]):
    """Finds its personal model R times, and moves its local model towards it each time."""

    def local(self, received: Ref, rounds: int) -> PreviousResult:
        """w_r after so many local rounds: w_r = (1 - eta lambda) w_(r-1) + eta lambda
        theta_(r-1), w_0 as received.
        """
        step = self.params.eta * self.params.lam
        parts = [((1.0 - step) ** (rounds - 1 - number) * step) for number in range(rounds)]
        return PreviousResult(((received, (1.0 - step) ** rounds), *enumerate(parts)))

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        """K steps of each batch on its loss + lambda / 2 ||theta - w_r||^2, from the personal
        model before.
        """
        params = self.params
        received = instruction["model"]
        trainings = []
        for number in range(params.local_rounds):
            start = PreviousResult(((number - 1, 1.0),)) if number else received
            anchor = self.local(received, number) if number else None
            trainings.append(
                Training(start, steps=params.steps, mu=params.lam, anchor=anchor, only_batch=number)
            )
        return [Train(training) for training in trainings]

    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        assert result.update is not None
        thetas = (*result.earlier, result.update)
        parts = self.local(instruction["model"], len(thetas)).parts
        update = device.mix(
            [(thetas[part] if isinstance(part, int) else part, factor) for part, factor in parts]
        )
        return super().computed(
            device, instruction, result._replace(update=update, start=instruction["model"])
        )

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        assert result.trained is not None
        return self.answer(
            device,
            instruction,
            result,
            result.trained,
            device.state.get("model", instruction["model"]),
        )


class PFedMe(Personal[PFedMeParams]):
    """Personalised federated learning with Moreau envelopes.

    Source: T Dinh, Tran and Nguyen, "Personalized federated learning with Moreau envelopes"
    (NeurIPS 2020), Algorithm 1: from the received w a client makes R local rounds, in each of which
    it finds theta = argmin f(theta; batch) + lambda / 2 ||theta
    - w_r||^2 by K steps, and then w_(r+1) = w_r - eta lambda (w_r - theta). It sends w_R; the
      next global model is (1 - beta) w
    + beta times the mean. Only the clients of a round compute, where in the paper all do and
    some are sampled.

    Sends what FedAvg sends. Batches are those of SGD, in its order. A client's last theta is its
    personal model.
    """

    Params = PFedMeParams
    Client = PFedMeClient
