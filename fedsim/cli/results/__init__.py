"""Results of commands (verbs) as typed objects, which ``--json`` prints.

``schema`` has their JSON schemas. A command imports the module of its result only when it creates
the result, because pydantic takes a while to load.
"""
