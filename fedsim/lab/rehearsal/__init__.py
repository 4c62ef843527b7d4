"""Rehearsals: a scenario's Flower app runs for real on one machine, beside its simulation.

``needs`` says what a rehearsal needs, ``network`` makes network namespaces with shaped links,
``processes`` starts processes that end with the rehearsal, ``conduct`` runs Flower's SuperLink and
SuperNodes there. ``differences`` compares the measured run folder with the simulated one, and
``page`` writes the comparison as a page.
"""
