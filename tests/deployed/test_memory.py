"""What a device's node remembers between two tasks, as a packet."""

import numpy as np
import pytest

from fedsim.clock.simulation import Simulation
from fedsim.deployed.memory import DeviceMemory, SentAnswer, read_memory
from fedsim.deployed.packing import Packet
from fedsim.deployed.reading import Json, PacketError
from fedsim.federation.client import Instruction
from fedsim.federation.contents import Header, Lazy
from fedsim.federation.direction_codec import CodedContents
from fedsim.learning.learner import Learner
from fedsim.running.assembly import Run
from fedsim.running.scenario import Scenario


@pytest.fixture(scope="module")
def learner() -> Learner:
    scenario = Scenario(data={"source": "digits"}, population={"devices": 10})
    return Run(scenario, Simulation()).learner


def test_a_memory_is_read_as_it_was_written(learner: Learner) -> None:
    model = learner.received(np.ones(int(learner.parameters), dtype=np.float32))
    coded = CodedContents({"update": model, "loss": Lazy("loss", model), "n": Header(3)}, {})
    last = SentAnswer.of(Instruction("train", {"model": model, "epoch": 2}, 4), coded)
    packet = Packet({})
    counts = {"used": np.array([3, 0])}
    written = DeviceMemory({"seen": [1, 2]}, {"update": model}, True, 2.5, 7, last, counts)
    written.write_to(packet, learner)
    memory = read_memory(packet, learner)
    assert memory.last is not None
    assert memory.last.instruction.job == "train"
    assert memory.last.instruction["epoch"] == 2
    assert memory.last.reply.keys() == {"update", "n"}
    assert memory.residuals["update"].value == pytest.approx(model.value)
    assert memory.labels["used"].tolist() == [3, 0]
    facts = (memory.state, memory.has_base, memory.speed, memory.count)
    assert facts == ({"seen": [1, 2]}, True, 2.5, 7)


def test_a_node_remembers_nothing_before_its_first_task(learner: Learner) -> None:
    assert read_memory(Packet({}), learner) == DeviceMemory()


@pytest.mark.parametrize("tree", [None, 3, {"dict": []}, {"dict": [["last", None], ["old", 1]]}])
def test_a_memory_of_another_form_is_refused(learner: Learner, tree: Json) -> None:
    with pytest.raises(PacketError, match="the memory of a node"):
        read_memory(Packet({"memory": tree}), learner)
