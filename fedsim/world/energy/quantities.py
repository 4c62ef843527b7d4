"""Distributions of powers and energies over the devices, as those of speeds and rates."""

from typing import Annotated

from pydantic import Field

from fedsim.language.units import Joules, JoulesPerByte, Watts
from fedsim.world.distributions import BY_DEVICE, Choice, Constant, FromFile, Listed, LogNormal, Uniform

Share = Annotated[float, Field(ge=0.0, le=1.0)]

PowerDistribution = Annotated[
    Constant[Watts] | Uniform[Watts] | LogNormal[Watts] | Choice[Watts] | Listed[Watts] | FromFile[Watts],
    Field(discriminator="kind"),
    BY_DEVICE,
]
EnergyDistribution = Annotated[
    Constant[Joules] | Uniform[Joules] | LogNormal[Joules] | Choice[Joules] | Listed[Joules] | FromFile[Joules],
    Field(discriminator="kind"),
    BY_DEVICE,
]
ByteEnergyDistribution = Annotated[
    Constant[JoulesPerByte]
    | Uniform[JoulesPerByte]
    | LogNormal[JoulesPerByte]
    | Choice[JoulesPerByte]
    | Listed[JoulesPerByte]
    | FromFile[JoulesPerByte],
    Field(discriminator="kind"),
    BY_DEVICE,
]
ShareDistribution = Annotated[
    Constant[Share] | Uniform[Share] | Choice[Share] | Listed[Share] | FromFile[Share],
    Field(discriminator="kind"),
    BY_DEVICE,
]
