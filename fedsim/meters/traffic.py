"""Which device moved how much."""

from fedsim.meters.base import Column, Meter, MeterContext, Transfer


class Traffic(Meter):
    """The bytes on the wire of each device, both ways."""

    entry = "traffic"
    device_columns = (
        Column("bytes_sent", "bytes", "that the device sent, with headers"),
        Column("bytes_received", "bytes", "that the device received, with headers"),
    )

    def __init__(self, context: MeterContext) -> None:
        self._moved = {column.name: [0.0] * context.devices for column in self.device_columns}

    def on_transfer(self, ended: Transfer) -> None:
        if ended.device is not None:
            self._moved["bytes_sent" if ended.direction == "up" else "bytes_received"][ended.device] += ended.wire_bytes

    def of_devices(self) -> dict[str, list[float]]:
        return self._moved
