"""The simulated world: devices, their availability and speed, the network, and tasks being carried out."""
