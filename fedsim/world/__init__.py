"""What exists in simulated time: devices, their availability and speed, the network, and tasks being carried out."""
