"""Ray: an executor whose workers are processes of this machine, or of all machines of a cluster.

``executor`` carries out calls as tasks of Ray. ``parcels`` packs the calls, and sends an object that
many calls need to each node only once. ``connection`` imports Ray with safe settings.
"""
