"""pFedMe: personal models around local ones, which become the global one (T Dinh et al., 2020)."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.training import LocalSteps, Proximal, Training
from fedsim.federation import Contents, Device, Instruction, LocalResult, PreviousResult
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import AggregatingParams
from fedsim.toolbox.strategies.personal import OwnModelClient, Personal
from fedsim.world.steps import TaskStep, Train


class PFedMeParams(AggregatingParams):
    """Keys of ``[strategy]`` for pFedMe.

    The paper's beta is the learning rate of ``server = "sgd"``. ``AggregatingParams`` describes the
    keys of all strategies with rounds and aggregation.

    Attributes:
        lam: lambda, weight of the pull of the personal model to the local one.
        local_rounds: R, local rounds of a client in a round, each on another batch.
        steps: K, SGD steps on the batch of a local round, which train the personal model at the
            learning rate of ``[training]``.
        eta: learning rate of the local model.
    """

    why_not: ClassVar[Reasons] = Reasons(
        training_limit="with pFedMe a client trains 'local_rounds' times",
        by_device=dict.fromkeys(
            ("epochs", "steps"),
            "pFedMe's clients train for 'local_rounds' batches of 'steps' steps",
        ),
    )
    kind: Literal["pfedme"] = "pfedme"
    lam: float = Field(default=15.0, gt=0.0, le=1e6)
    local_rounds: int = Field(default=20, ge=1, le=10_000)
    steps: int = Field(default=5, ge=1, le=100_000)
    eta: float = Field(default=0.005, gt=0.0, le=1e6)
    aggregation: AggregationSpec = Mean()

    @model_validator(mode="after")
    def _check_epochs(self) -> Self:
        if self.local_epochs != 1:
            raise ValueError(
                f"'local_epochs' is {self.local_epochs}, but pFedMe's clients train for "
                "'local_rounds' batches; give that"
            )
        return self


class PFedMeClient(OwnModelClient[PFedMeParams]):
    """Client that trains a personal model R times, each time pulled to its local model.

    R is the key ``local_rounds``. After each training the local model moves towards the personal
    model. The local model is sent to the server; the personal model stays on the device.
    """

    def local_model(self, received: Ref, rounds: int) -> PreviousResult:
        """Return the local model w_r after r local rounds, as a linear combination of models.

        w_r is (1 - s) w_(r-1) + s theta_(r-1) with s = eta lambda, which is (1 - s)^r w_0 + the sum
        over i < r of s (1 - s)^(r-1-i) theta_i. Here w_0 is ``received``, and theta_i is the
        personal model that results from the training with index i, from 0.

        Args:
            received: the model that the client has received.
            rounds: r, the count of local rounds.

        Returns:
            Pairs of a model and its coefficient; the index i stands for the model theta_i, which is
            not computed yet.
        """
        step = self.params.eta * self.params.lam  # s
        parts: list[tuple[Ref | int, float]] = [(received, (1.0 - step) ** rounds)]
        for index in range(rounds):
            parts.append((index, (1.0 - step) ** (rounds - 1 - index) * step))  # theta_index
        return PreviousResult(tuple(parts))

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        """Return R trainings of the personal model, each of K steps on one batch.

        R is the key ``local_rounds``, and K the key ``steps``. The loss is loss(batch) + lambda / 2
        ||theta - w_r||^2, with the personal model theta and the local model w_r. The first training
        begins at the received model, each later training at the result of the training before.
        """
        params = self.params
        received = instruction["model"]
        # Without an anchor, the proximal term is around the model at which the training begins.
        first = Training(
            received, LocalSteps(params.steps, only_batch=0), proximal=Proximal(params.lam)
        )
        trainings = [Train(first)]
        for index in range(1, params.local_rounds):
            start = PreviousResult(parts=((index - 1, 1.0),))  # the result of the training before
            training = Training(
                start,
                LocalSteps(params.steps, only_batch=index),
                proximal=Proximal(params.lam, anchor=self.local_model(received, index)),
            )
            trainings.append(Train(training))
        return trainings

    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        """Replace the result of the last training, a personal model, by the local model w_R.

        Args:
            device: the device.
            instruction: the message, with the received model.
            result: the personal models of all R trainings: all but the last one as ``earlier``, the
                last one as ``update``.

        Returns:
            The result with the update w_R, which is sent, and the received model as its start.
        """
        assert result.update is not None
        received = instruction["model"]
        thetas = (*result.earlier, result.update)
        parts = list[tuple[Ref, float]]()
        for part, factor in self.local_model(received, len(thetas)).parts:
            # an index stands for the personal model of a training, which is known by now
            model = thetas[part] if isinstance(part, int) else part
            parts.append((model, factor))
        changed = result._replace(update=device.mix(parts), start=received)
        return super().computed(device, instruction, changed)

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        assert result.trained is not None
        last = device.state.get("model", instruction["model"])
        return self.answer(device, instruction, result, own=result.trained, otherwise=last)


class PFedMe(Personal[PFedMeParams]):
    """Personalised federated learning with Moreau envelopes.

    Each client trains a personal model, which is pulled to a local model; the server averages the
    local models.

    Source: T Dinh, Tran and Nguyen, "Personalized federated learning with Moreau envelopes"
    (NeurIPS 2020), Algorithm 1. Only the clients of a round compute; in the paper all clients
    compute, and some are sampled.

    - A client receives the global model w. It makes R local rounds r = 0, 1, ..., R - 1
      (``local_rounds``), with the local model w_0 = w at first.
    - In each local round it draws a batch, and moves its personal model theta, at first w, by K SGD
      steps (``steps``) towards the minimum of f(theta; batch) + lambda / 2 ||theta - w_r||^2. f is
      the loss, and lambda the key ``lam``.
    - Then the local model becomes w_(r+1) = w_r - eta lambda (w_r - theta), with the key ``eta``.
    - After all local rounds the client sends w_R. The next global model is (1 - beta) w + beta
      times the mean of all w_R, with the server's learning rate beta (1 by default).

    Messages are as in FedAvg, the model down and w_R up (d parameters each). Batches are drawn as
    for SGD. A client's last theta is its personal model.
    """

    Params = PFedMeParams
    Client = PFedMeClient
