"""Flower's SuperNode, whose waits can be shortened (see ``fedsim.deployed.waits``).

``python -m fedsim.deployed.supernode`` takes the arguments of ``flower-supernode``.
"""

from fedsim.deployed.waits import shorten_waits


def main() -> None:
    """Run Flower's SuperNode, with shorter waits if the environment variable for them is set."""
    from flwr.supernode.cli import flower_supernode

    shorten_waits()
    flower_supernode()


if __name__ == "__main__":
    main()
