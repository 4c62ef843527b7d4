"""Studies: strategies compared in the same worlds.

``docs/howto/study.md`` shows how to write a study, and ``scenarios`` has many. ``spec`` has the
keys of a study file, ``variant`` makes the scenario of a variant, and ``plan`` lists the runs.
``search`` proposes the values that a search tries, ``trials`` plans its runs, and ``seeding`` adds
seeds. ``shards`` deals runs out to several processes, ``shared_search`` and ``journal`` let them
work on one search, ``merging`` joins their folders, and ``costs`` predicts the time and memory of
each. ``pool`` carries out runs in ``worker`` processes and shows the progress. ``cluster`` does so
on Ray, with ``far``, ``inputs`` and ``parts``. ``folder`` reads and writes the study on disk,
``conduct`` does all of this in order, and ``loaded`` gives the results to Python.
"""
