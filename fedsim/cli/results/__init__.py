"""Results of verbs as typed objects, which ``--json`` prints; ``schema`` has their JSON schemas.

A verb imports the module of its result only to make it, as pydantic takes a while to load.
"""
