"""Trainers besides SGD."""
