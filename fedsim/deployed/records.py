"""Conversion of packets (messages of fedsim) to the content of Flower's messages, and back."""

import json
from functools import partial

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsim.common.files import parse_json
from fedsim.deployed.packing import Packet
from fedsim.deployed.reading import PacketError, read_safely, table_of

HEAD = "fedsim.head"
"""Config record with the head of a packet, as JSON."""
PAYLOADS = "fedsim.payloads"
"""Array record with the payloads of a packet, whose bytes are counted."""
ARRAYS = "fedsim.arrays"
"""Array record with the arrays to which the head of a packet refers."""
_PAYLOAD = "fedsim.payload"  # Flower's name of the serialisation: raw bytes


def to_records(packet: Packet) -> RecordDict:
    """Convert a packet (a message of fedsim) to the content of a Flower message.

    Args:
        packet: the packet.
    """
    head = ConfigRecord({"json": json.dumps(packet.head)})
    records = RecordDict({HEAD: head})
    payloads = {
        name: Array("uint8", (len(payload),), _PAYLOAD, payload)
        for name, payload in packet.payloads.items()
    }
    if payloads:
        records[PAYLOADS] = ArrayRecord(payloads)
    if packet.arrays:
        arrays = {str(number): Array(array) for number, array in enumerate(packet.arrays)}
        records[ARRAYS] = ArrayRecord(arrays)
    return records


def from_records(records: RecordDict) -> Packet:
    """Convert the content of a Flower message to a packet (a message of fedsim).

    Args:
        records: the content.

    Raises:
        PacketError: the content comes from no fedsim app, or is broken.
    """
    if HEAD not in records.config_records:
        raise PacketError(
            f"a message has the records {', '.join(records) or 'none'}, and no {HEAD!r}; both "
            "halves must come from the same exported app"
        )
    return read_safely("a message", partial(_packet_of, records))


def _packet_of(records: RecordDict) -> Packet:
    head = parse_json(str(records.config_records[HEAD]["json"]))
    packet = Packet(table_of(head, "its head"))
    if PAYLOADS in records.array_records:
        payloads = records.array_records[PAYLOADS]
        packet.payloads = {name: array.data for name, array in payloads.items()}
    if ARRAYS in records.array_records:
        arrays = records.array_records[ARRAYS]
        packet.arrays = [arrays[str(number)].numpy() for number in range(len(arrays))]
    return packet
