"""Runs and studies side by side: what each reached, and what it cost.

``measures`` reads the figures of a run off its folder (``work`` those of computing), ``paired`` has means and intervals over
seeds, ``lines`` says what is put side by side (``points`` what its grid is called), ``table`` makes rows and columns of it,
``text`` writes them for terminals, spreadsheets and Markdown (``harmless`` whatever the names in them), ``study`` beside a
study's runs, and ``show`` is all of it in one.
"""
