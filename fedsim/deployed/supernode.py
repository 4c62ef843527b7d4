"""Flower's SuperNode, whose waits can be shortened (see ``fedsim.deployed.waits``).

``python -m fedsim.deployed.supernode`` takes the arguments of ``flower-supernode``.
"""

from fedsim.deployed.waits import shorten_waits


def main() -> None:
    """Run Flower's SuperNode; its waits are limited if ``FEDSIM_FLOWER_WAITS`` is set."""
    from flwr.supernode.cli import flower_supernode

    shorten_waits()
    flower_supernode()


if __name__ == "__main__":
    main()
