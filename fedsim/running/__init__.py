"""A scenario becomes a simulation, and the simulation a result."""
