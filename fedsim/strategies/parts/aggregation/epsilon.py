"""Epsilon over rounds: Renyi differential privacy of Gaussian noise, by ``dp-accounting`` (the extra ``privacy``)."""

from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal

Sampling = Literal["poisson", "without-replacement", "none"]


def can_be_told() -> bool:
    """Whether the package is installed."""
    return find_spec("dp_accounting") is not None


@lru_cache(maxsize=32)
def _of_one_round(noise: float, sampling: Sampling, asked: int, devices: int) -> tuple[Any, Any]:
    """Orders, and the divergence of one round at each."""
    import dp_accounting as dp
    from absl import logging
    from dp_accounting.rdp import RdpAccountant

    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    event: Any = dp.GaussianDpEvent(noise)
    if sampling == "poisson":
        event = dp.PoissonSampledDpEvent(asked / devices, event)
    elif sampling == "without-replacement":
        relation = dp.NeighboringRelation.REPLACE_ONE
        event = dp.SampledWithoutReplacementDpEvent(devices, asked, dp.GaussianDpEvent(noise / 2))  # 2 C apart at most
    accountant = RdpAccountant(neighboring_relation=relation)
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # it warns of each order that it leaves out, which is harmless
    accountant.compose(event)
    logging.set_verbosity(verbosity)
    return accountant.orders, accountant.rdp


def epsilon(noise: float, sampling: Sampling, asked: int, devices: int, delta: float, rounds: int) -> float:
    """Epsilon of so many rounds at ``delta``.

    Args:
        noise: the noise's standard deviation over the longest that an update can be.
        sampling: how a round's ``asked`` clients come from all ``devices``. ``poisson``: each by itself, with that probability;
            one device more or less. ``without-replacement``: so many exactly; one device's data replaced by others. ``none``:
            the device that is counted is in every round.
        asked, devices: see above.
        delta: the probability with which epsilon need not hold.
        rounds: how often that was done.
    """
    from dp_accounting.rdp import compute_epsilon

    orders, divergence = _of_one_round(noise, sampling, asked, devices)
    return float(compute_epsilon(orders, rounds * divergence, delta)[0])
