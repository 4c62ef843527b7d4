"""Studies: strategies compared in the same worlds. ``docs/howto/study.md`` writes one, and
``scenarios`` holds many.

``spec`` is the grammar of a study file, ``plan`` makes the runs. ``search`` proposes values for the
keys of a study that searches, and ``trials`` plans their runs. ``pool`` carries runs out in
``worker`` processes, ``cluster`` on Ray; ``folder`` is the study on disk, ``conduct`` does all of
it in order, and ``progress`` shows it.
"""
