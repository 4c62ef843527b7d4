"""Scenario whose models do not all fit into the memory that it grants them."""

from typing import Any


def many_models(devices: int, memory: str, **changes: Any) -> dict[str, Any]:
    """Return the sections of a run of devices with models of about 85 kB.

    Args:
        devices: count of devices.
        memory: memory for models (``training.memory``).
        changes: sections in place of these, or in addition.
    """
    sections: dict[str, Any] = {
        "seed": 5,
        "data": {
            "source": {"kind": "synthetic", "features": 60, "classes": 10},
            "partition": {"kind": "synthetic", "log_mean": 1.0, "log_std": 0.1, "least": 3},
        },
        "model": {"kind": "mlp", "hidden": [300]},
        "training": {"memory": memory},
        "population": {"devices": devices, "speed": "100 samples/s"},
    }
    return sections | changes
