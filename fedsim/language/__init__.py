"""The language of scenarios: specs, quantities with units, registries of parts, import paths."""
