"""Distributions of powers and energies over the devices, as those of speeds and rates."""

from typing import Annotated

from pydantic import Field

from fedsim.language.families import Kinds
from fedsim.language.units import Joules, JoulesPerByte, Watts
from fedsim.world.distributions import Choice, Constant, FromFile, Listed, LogNormal, Uniform

Share = Annotated[float, Field(ge=0.0, le=1.0)]

PowerDistribution = Annotated[
    Constant[Watts] | Uniform[Watts] | LogNormal[Watts] | Choice[Watts] | Listed[Watts] | FromFile[Watts],
    Field(discriminator="kind"),
    Kinds(usual="constant", bare="value", by_device=True),
]
EnergyDistribution = Annotated[
    Constant[Joules] | Uniform[Joules] | LogNormal[Joules] | Choice[Joules] | Listed[Joules] | FromFile[Joules],
    Field(discriminator="kind"),
    Kinds(usual="constant", bare="value", by_device=True),
]
ByteEnergyDistribution = Annotated[
    Constant[JoulesPerByte]
    | Uniform[JoulesPerByte]
    | LogNormal[JoulesPerByte]
    | Choice[JoulesPerByte]
    | Listed[JoulesPerByte]
    | FromFile[JoulesPerByte],
    Field(discriminator="kind"),
    Kinds(usual="constant", bare="value", by_device=True),
]
ShareDistribution = Annotated[
    Constant[Share] | Uniform[Share] | Choice[Share] | Listed[Share] | FromFile[Share],
    Field(discriminator="kind"),
    Kinds(usual="constant", bare="value", by_device=True),
]
