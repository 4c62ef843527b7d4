"""Studies: strategies compared in the same worlds.

``docs/howto/study.md`` shows how to write a study, and ``scenarios`` has many. ``spec`` has the
keys of a study file, ``variant`` the changes that make a scenario, and ``plan`` the runs.
``search`` proposes the values of a search, and ``trials`` plans its runs. ``shards`` deals runs
out to several processes, ``shared_search`` and ``journal`` let them work on one search, ``merging``
joins their folders, and ``costs`` predicts what each takes. ``pool`` carries out runs in ``worker``
processes and shows the progress, and ``cluster`` carries out runs on Ray.
``folder`` is the study on disk, ``conduct`` does all of this in order, and ``loaded`` gives the
results to Python.
"""
