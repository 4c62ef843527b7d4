"""Names of the kinds of steps that fedsim has, as in the column ``step`` of records.

Users add kinds of steps of their own (``TaskStep``).
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
