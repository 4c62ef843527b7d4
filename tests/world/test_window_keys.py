"""Keys of the window model: each wrong value gets a message with key, value and what is allowed."""

import pytest

import fedsim
from fedsim.common.errors import FedsimError

CONTROLS = "allowed are cubic, reno, bbr"
A_TABLE = "it must be a table, and 'fedsim list network.protocol.queue"
MISTAKES = {
    "model='windows'": r"\.model is 'windows'; allowed are fluid, window \(did you mean 'window'",
    "model=1": r"\.model is 1; allowed are fluid, window",
    "control='cubik'": rf"\.control is 'cubik'; {CONTROLS} \(did you mean 'cubic'",
    "control=1": rf"\.control is 1; {CONTROLS}",
    "control=nan": rf"\.control is nan; {CONTROLS}",
    "control=['cubic']": rf"\.control is \['cubic'\]; {CONTROLS}",
    "queue='100 ms'": rf"\.queue is '100 ms'; {A_TABLE}' names its keys",
    "queue=5": rf"\.queue is 5; {A_TABLE}' names its keys",
    "queue={}": r"\.queue .*no length; allowed is one of 'time' and 'size'",
    "queue={time='100'}": r"\.queue\.time is '100': a time is a number and a unit out of ns, us",
    "queue={time=100}": r"\.queue\.time is 100.*unit",
    "queue={time='-1 ms'}": r"\.queue\.time is '-1 ms': a time cannot be negative",
    "queue={time='0 s'}": r"\.queue\.time is '0 s'.*above 0",
    "queue={time='nan s'}": r"\.queue\.time is 'nan s'",
    "queue={time='inf s'}": r"\.queue\.time is 'inf s'",
    "queue={time=nan}": r"\.queue\.time is nan",
    "queue={time='5 kB'}": r"\.queue\.time is '5 kB'",
    "queue={size='5 ms'}": r"\.queue\.size is '5 ms'",
    "queue={size='-5 kB'}": r"\.queue\.size is '-5 kB': a size cannot be negative",
    "queue={size=nan}": r"\.queue\.size is nan",
    "queue={sise='5 kB'}": r"\.queue has the unknown key 'sise'; allowed are time, size",
    "queue={time='1 ms',size='5 kB'}": r"\.queue: 'time' is .*counts only where 'size' is not given",
    "queues={'server upp'={time='1 ms'}}": r"'server upp'.*did you mean 'server up'",
    "queues={'device 999 up'={time='1 ms'}}": r"'device 999 up'",
    "queues={'server up'='60 ms'}": rf"\.queues\.server up is '60 ms'; {A_TABLE}s",
    "queues={'server up'={time='-1 s'}}": r"\.queues\.server up\.time is '-1 s': .*negative",
    "queues=['server up']": r"\.queues is \['server up'\]; .*table",
    "queues=3": r"\.queues is 3; .*table",
    "initial_window=0": r"\.initial_window is 0; it must be 1 or more",
    "initial_window=-3": r"\.initial_window is -3; it must be 1 or more",
    "initial_window=2.5": r"\.initial_window is 2\.5; it must be a whole number",
    "initial_window='ten'": r"\.initial_window is 'ten'; it must be a whole number",
    "initial_window=nan": r"\.initial_window is nan; it must be ",
    "segment='-1 B'": r"\.segment is '-1 B': a size cannot be negative",
    "segment=1448": r"\.segment is 1448.*unit",
    "header='-1 B'": r"\.header is '-1 B': a size cannot be negative",
    "round_trip='-1 ms'": r"\.round_trip is '-1 ms': a time cannot be negative",
    "round_trip='nan s'": r"\.round_trip is 'nan s'",
    "slow_start=false": r"'slow_start' is false, which counts only where 'model' is 'fluid'",
    "weight_spread=1.2": r"'weight_spread' is 1\.2, which counts only where 'model' is 'fluid'",
    "controll='reno'": r" has the unknown key 'controll'; .*did you mean 'control'",
}
for _flag in ("hystart", "pacing", "holds_back"):
    for _value in ("'yes'", "2", "nan", "[true]"):
        MISTAKES[f"{_flag}={_value}"] = rf"\.{_flag} is .*; it must be true or false"


@pytest.mark.parametrize("keys", MISTAKES)
def test_a_wrong_value_is_named_with_its_key_and_what_is_allowed(keys: str) -> None:
    kind = "kind='tcp'" if keys.startswith("model") else "kind='tcp',model='window'"
    change = f"network.protocol={{{kind},{keys}}}"
    with pytest.raises(FedsimError, match=f"(?s)network\\.protocol.*{MISTAKES[keys]}"):
        fedsim.Simulation(fedsim.load("quickstart", [change]))
