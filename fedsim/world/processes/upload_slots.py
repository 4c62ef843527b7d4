"""A server that takes so many uploads at a time."""

from collections.abc import Generator
from typing import Any, ClassVar, Literal

import simpy
from pydantic import Field

from fedsim.world.processes.base import Process
from fedsim.world.processes.world import World


class UploadSlots(Process):
    """At most ``slots`` uploads are under way at a time; the others wait, first come, first served."""

    restorable: ClassVar[bool] = True

    kind: Literal["upload-slots"] = "upload-slots"
    slots: int = Field(ge=1)

    def run(self, world: World) -> Generator[Any, Any, Any]:
        """Uploads queue for a resource of SimPy, from the beginning of the run to its end."""
        world.queue("up", simpy.Resource(world.env, self.slots))
        yield world.env.event()
