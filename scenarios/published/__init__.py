"""Published tables beside our own figures: what a study on it states, and how it is run and shown.

A study says *tables* (``tables.py``): rows that differ by ``key=value`` changes to one scenario, measures, published figures,
claims. ``study.main`` runs what is missing and prints it all as Markdown. ``scenarios/flexcfl`` is an example.
"""
