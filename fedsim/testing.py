"""Tests (a contract) that every strategy must pass, fedsim's and your own.

With pytest, one class is enough::

    from fedsim.testing import StrategyContract


    class TestMine(StrategyContract):
        strategy = {"kind": "mypackage.mine:Mine", "clients_per_round": 5}
        sections = {"messages": {"up": "mypackage.mine:MyCodec"}}  # further sections of the scenario, if needed

The methods of ``StrategyContract`` run small worlds of 24 devices with the data set of digits from
scikit-learn. Without pytest, call each method, with the path of an empty folder if it takes one.
"""

from fedsim.lab.contract import *  # noqa: F403
