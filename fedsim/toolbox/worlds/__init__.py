"""Kinds of the world's parts: availability by day and as recorded, regions of clouds, hospitals,
heat.
"""
