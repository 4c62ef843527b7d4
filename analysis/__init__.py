"""Pictures of runs, drawn from run folders alone: they never touch the engine.

Each module makes one kind of picture, and its ``draw_...`` function returns one matplotlib ``Figure``:

- ``timeline``: a lane a device, what it did when, what was wasted and why, and when it could not be reached.
- ``accuracy``: accuracy against rounds, simulated time and bytes, for one run or several.
- ``stragglers``: each selected device's epochs against its deadline, a panel a round.
- ``clusters``: clusters or tiers over the sizes of the devices' data, at first and after re-clustering.
- ``membership``: which group each device was in over time, with moves, shifts, newcomers and leavers, and the groups' sizes.
- ``similarity``: how like each other devices were when they were put into groups, the matrix ordered by group.
- ``embedding``: the features that were clustered, coloured by group.
- ``split_tree``: how clusters were split, with the accuracy of each in the end.
- ``fairness``: Jain's index and waiting time over rounds, selections by device and by cluster, for one run or several.
- ``traffic``: bytes by direction and purpose, over simulated time and in total, with the wasted part.
- ``purposes``: total bytes by purpose for several runs, as they moved and as papers count them.
- ``energy``: joules by phase, for one run or several, and how full the batteries of a few devices were.
- ``costs``: accuracy against bytes, simulated time and rounds, the seeds of a scenario as a band.

``pictures`` has all of them by name. ``python -m analysis RUN...`` draws those that apply; ``report`` (``fedsim report
RUN...``) puts them on one page, with a timeline that can be looked at closely. ``activity`` and ``presence`` read tables for
them, ``view`` cuts out what a timeline shows, ``lanes`` draws its lanes and ``marks`` what happened in them; ``moves`` and
``clusterings`` read what the pictures of groups of devices show; ``series`` puts seeds together; ``style`` is what all share.
"""
