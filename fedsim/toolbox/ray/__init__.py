"""Ray: an executor whose workers are processes of this machine, or of all machines of a cluster.

``executor`` carries out calls as tasks of Ray. ``parcels`` sends what many calls need only once to
each node, and ``connection`` imports Ray with safe settings.
"""
