"""Strategies of federated learning, a file for each, and the bases that several of them share."""
