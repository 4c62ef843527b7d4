"""Names of the kinds of steps that fedsim has, as in the column ``step`` of records.

A user adds a kind of step by a subclass of ``TaskStep``.
"""

DOWNLOAD = "download"
UPLOAD = "upload"
TRAIN = "train"
EVALUATE = "evaluate"
COMPUTE = "compute"
ENCODE = "encode"
DECODE = "decode"
QUEUE = "queue"
START_UP = "start-up"
SLEEP = "sleep"

DIRECTIONS = {DOWNLOAD: "down", UPLOAD: "up"}
"""Name of a step that sends a message -> direction of the message."""

COMPUTATIONS = (TRAIN, EVALUATE, COMPUTE)
"""Steps in which a device computes in epochs, at its own speed or on the cores of its host."""
