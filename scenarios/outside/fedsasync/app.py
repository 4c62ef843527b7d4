"""FedSaSync as a strategy of time alone: a round ends when enough clients have replied, and all
clients test each new model.

Devices 0 to n - 1 are the nodes as they train, n to 2n - 1 the same nodes as they test: Flower's
simulation engine gives two messages of one node to two of its actors.
"""

import math
from typing import Any

from fedsim.plugin import (
    Client,
    Contents,
    Device,
    Header,
    Instruction,
    LocalResult,
    Strategy,
    StrategyParams,
    TaskEnd,
    Work,
)
from fedsim.world.steps import Pause


class FedSaSyncParams(StrategyParams):
    """The app's configuration, and the time (s of a core, unless said otherwise) that its parts
    take.

    Attributes:
        nodes: n.
        replies: M, how many end a round.
        slow: so many nodes, the first ones, sleep before they train.
        rounds: how many; the last one waits for all nodes.
        cold: the first message of an actor, besides its own work.
        fixed: each message, after a sleep.
        sample: a sample of a training.
        test: a sample of a test, as a share of that.
        server: seconds in which the server aggregates models when a round has ended; half of
            that after the tests.
        sleeps, polls, tests_polled, engine: seconds of a slow node's sleep, between the server's
            looks while clients train and while they test, and between two looks of the engine for
            new messages.
    """

    kind: str = "fedsim.running.scenarios.outside.fedsasync.app:FedSaSync"
    nodes: int = 20
    replies: int
    slow: int = 0
    rounds: int
    cold: float
    fixed: float
    sample: float
    test: float
    server: float
    sleeps: float = 5.0
    polls: float = 0.05
    tests_polled: float = 0.1
    engine: float = 0.1


class FedSaSyncClient(Client[FedSaSyncParams]):
    """Takes its time. Four fifths of a node's samples are for training."""

    def work(self, device: Device, instruction: Instruction) -> list[Any]:
        params, node = self.params, device.number % self.params.nodes
        if instruction.job == "test":
            return [Work(seconds=params.fixed + params.test * params.sample * 0.2 * device.samples)]
        steps: list[Any] = [Work(seconds=params.cold)] if instruction.round == 0 else []
        if node < params.slow:
            steps.append(Pause("sleep", params.sleeps))
        return [*steps, Work(seconds=params.fixed + params.sample * 0.8 * device.samples)]

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        return None


class FedSaSync(Strategy[FedSaSyncParams]):
    """Semi-asynchronous FedAvg of the Flower app FedSaSync (arXiv 2606.24230).

    Free nodes are asked when a round begins, busy ones work on. ``state`` has the messages
    received and the seconds in rounds.
    """

    Params = FedSaSyncParams
    Client = FedSaSyncClient

    async def on_start(self) -> None:
        phase = float(self.server.rng("engine").uniform(0, self.params.engine))
        self.state |= {
            "round": 0,
            "messages": 0,
            "seconds": 0.0,
            "phase": phase,
            "open": {},
            "replied": [],
            "testing": [],
        }
        self._begin()

    def _begin(self) -> None:
        self.state |= {"began": self.server.now, "received": []}
        self.server.begin_round(self.state["round"])
        self._push(
            "train", [node for node in range(self.params.nodes) if node not in self.state["open"]]
        )
        self.server.timer("train", self.server.now)

    def _push(self, job: str, devices: list[int]) -> None:
        """The engine takes up messages when it next looks."""
        engine, phase = self.params.engine, self.state["phase"]
        self.state[f"push {job}"] = devices
        self.state["open"] |= dict.fromkeys(devices) if job == "train" else {}
        self.server.timer(
            f"push {job}", math.ceil((self.server.now - phase) / engine) * engine + phase
        )

    async def on_timer(self, name: str) -> None:
        if name.startswith("push "):
            job = name.removeprefix("push ")
            for device in self.state[name]:
                round_ = self.state["round"] if job == "train" else None
                task = self.server.ask(
                    device, {"round": Header(self.state["round"])}, job, round=round_
                )
                if job == "train":
                    self.state["open"][device] = [task, round_]
        elif name == "train":
            self._look_for_replies()
        elif name == "tests":
            self.state["testing"] = list(range(self.params.nodes, 2 * self.params.nodes))
            self._push("test", list(self.state["testing"]))
            self.server.timer("test", self.server.now)
        elif name == "next":
            self._begin()
        elif self.state["testing"]:
            self.server.timer("test", self.server.now + self.params.tests_polled)
        elif self.state["round"] < self.params.rounds:
            self.server.timer("next", self.server.now + self.params.server / 2)
        else:
            self.server.stop("all rounds are over")

    def _look_for_replies(self) -> None:
        state, params, server = self.state, self.params, self.server
        state["received"] += [[*state["open"].pop(node), node] for node in state["replied"]]
        state["replied"] = []
        is_last = state["round"] == params.rounds - 1
        if state["open"] if is_last else len(state["received"]) < params.replies:
            server.timer("train", server.now + params.polls)
            return
        tasks, begun, _ = zip(*state["received"], strict=True)
        staleness = [state["round"] - one for one in begun]
        server.emit(
            "aggregate",
            round=state["round"],
            tasks=list(tasks),
            weights=[1.0] * len(tasks),
            staleness=staleness,
        )
        server.note_round(state["round"], {}, selected=params.nodes, valid=len(tasks))
        state["messages"] += len(tasks)
        state["seconds"] += server.now - state["began"]
        state["round"] += 1
        server.timer("tests", server.now + params.server)

    async def on_task_end(self, message: TaskEnd) -> None:
        if message.device < self.params.nodes:
            self.state["replied"].append(message.device)
        else:
            self.state["testing"].remove(message.device)

    def models(self) -> dict[str, Any]:
        return {}
