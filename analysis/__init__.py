"""Pictures of runs, drawn from run folders alone: they never touch the engine.

``pictures`` has all kinds by name. Each has a ``draw_...`` function, which returns one matplotlib
``Figure``; it raises ``NothingToDrawError`` where a run holds nothing that it could show, and
``RunFolderError`` where a folder is damaged. ``python -m analysis RUN...`` draws those that apply;
``report`` (``fedsim report RUN...``) puts them on one page.
"""
