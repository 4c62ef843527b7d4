"""The checks that every strategy must pass, for those of fedsim and for your own.

With pytest, one class is enough::

    from fedsim.testing import StrategyContract


    class TestMine(StrategyContract):
        strategy = {"kind": "mypackage.mine:Mine", "clients_per_round": 5}
        sections = {"messages": {"up": "mypackage.mine:MyCodec"}}  # of the scenario, if it needs more than a strategy

The worlds are small, of 24 devices with scikit-learn's digits. Without pytest, call the methods with an empty folder each.
"""

from fedsim.lab.contract import *  # noqa: F403
