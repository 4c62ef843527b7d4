"""Pictures of runs, drawn from run folders alone, without the code that simulates.

``pictures`` has all kinds of pictures by name. Each kind has a ``draw_...`` function, which returns
one matplotlib ``Figure``. The function raises ``NothingToDrawError`` if a run holds nothing to
show, and ``RunFolderError`` if a folder is damaged. ``python -m fedsim.analysis RUN...`` draws
every picture that applies; ``report`` (``fedsim report RUN...``) puts all of them on one page.
"""
