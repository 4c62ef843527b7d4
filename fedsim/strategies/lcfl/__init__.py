"""LCFL: groups by how well devices' models do on each other's data."""
