"""The contract that every strategy must pass, fedsim's and your own.

With pytest, one class is enough::

    from fedsim.testing import StrategyContract


    class TestMine(StrategyContract):
        strategy = {"kind": "mypackage.mine:Mine", "clients_per_round": 5}
        sections = {"messages": {"up": "mypackage.mine:MyCodec"}}  # further sections of the scenario, if needed

The worlds have 24 devices and scikit-learn's digits. Without pytest, call each method with an
empty folder.
"""

from fedsim.lab.contract import *  # noqa: F403
