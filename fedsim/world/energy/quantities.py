"""Distributions of powers and energies over the devices, as those of speeds and rates."""

from typing import Annotated

from pydantic import Field

from fedsim.language.units import Joules, JoulesPerByte, Watts
from fedsim.world.distributions import Choice, Constant, Distribution, LogNormal, Uniform, by_device

Share = Annotated[float, Field(ge=0.0, le=1.0)]

PowerDistribution = Annotated[Distribution, by_device(Watts, Constant, Uniform, LogNormal, Choice)]
EnergyDistribution = Annotated[Distribution, by_device(Joules, Constant, Uniform, LogNormal, Choice)]
ByteEnergyDistribution = Annotated[Distribution, by_device(JoulesPerByte, Constant, Uniform, LogNormal, Choice)]
ShareDistribution = Annotated[Distribution, by_device(Share, Constant, Uniform, Choice)]
