"""Keys of the world that other people's measurements asked for: each mistake is refused by its key, with what is allowed."""

import pytest

import fedsim
from fedsim.errors import FedsimError

_REGIONS = "network={kind='regions',of=['aws:eu-west-1']"
MISTAKES = {
    "population.host={}": "population.host: .* either 'cores' or 'throughput'",
    "population.host={cores=1,throughput=[[2,2]]}": "population.host: .* either 'cores' or 'throughput'",
    "population.host={cores=0}": r"population.host.cores is 0; .* 1 or more",
    "population.host={cores=1,coers=2}": r"unknown key 'coers'.*did you mean 'cores'",
    "population.host={cores=1,number=101}": "'host' has 101 hosts for 50 devices; allowed are 1 to 50",
    "population.host={cores=1,start_up='-1 s'}": "population.host.start_up is '-1 s': .* cannot be negative",
    "population.host={throughput=[[2,3]]}": "'throughput' lets 2 computations do the work of 3; allowed is up to 2",
    "population.host={throughput=[[4,3],[2,2]]}": "'throughput' has points at .*; allowed are ascending",
    "population.host={cores=1,memory='1 GB'}": "'memory' and 'task_memory' go together",
    "population.host={cores=1,memory='1 GB',task_memory='2 GB'}": "'memory' of .* holds no task",
    "population={host={cores=1},slow_phases={factor=0.5,mean_normal='1 s',mean_slow='1 s'}}": "slow_phases",
    "population.host={cores=1} & energy.battery={capacity='9 J'}": "energy.battery",
    "population.fitted_at_once=0": "population.fitted_at_once is 0; .* 1 or more",
    "population.capacity={kind='hospital-fets'}": "capacity.kind is 'hospital-fets'; .*did you mean 'hospitals-fets'",
    "network={kind='regions'}": "network.of is missing",
    "network={kind='regions',of=[]}": r"network.of is \[\]; .* 1 or more",
    "network={kind='regions',of=['aws:eu-west-9']}": "'of' has 'aws:eu-west-9'; allowed are .*did you mean 'aws:eu-west-",
    f"{_REGIONS},server_in='gcp:us-centra1'}}": "'server_in' has 'gcp:us-centra1'.*did you mean 'gcp:us-central1'",
    f"{_REGIONS},connections=0}}": "network.connections is 0; .* 1 or more",
    f"{_REGIONS},file='none.csv'}}": "network.file: there is no file 'none.csv'",
    "network.protocol={kind='tcp',late_weight=0}": "protocol.late_weight is 0; .* more than 0",
    "network.protocol={kind='tcp',late_weight=1.5}": "protocol.late_weight is 1.5; .* at most 1",
    "network.protocol={kind='tcp',late_wieght=0.8}": "unknown key 'late_wieght'",
    "network.protocol.kind='bbr2'": "protocol.kind is 'bbr2'; allowed are fluid, tcp.*did you mean 'bbr'",
    "world.processes=[{kind='heat',factor=1.0}]": "processes.0.factor is 1.0; .* less than 1",
    "world.processes=[{kind='heat',slow_at=0.7,fast_at=0.8}]": "'fast_at' must be below 'slow_at'",
    "world.processes=[{kind='heat',devices=[999]}]": "'heat'.: there is no device 999; allowed are 0 to 49",
    "world.processes=[{kind='heat',warms='0 s'}]": "processes.0.warms is '0 s'",
    "strategy={kind='diloco',collective='rings'}": "strategy.collective is 'rings'; .*did you mean 'ring'",
    "strategy={kind='diloco',fragments=0}": "strategy.fragments is 0; .* 1 or more",
    "strategy={kind='diloco',mixing=0.3}": "mixing.*overlap",
    "strategy={kind='local-sgd',local_steps=0}": "strategy.local_steps is 0; .* 1 or more",
}


@pytest.mark.parametrize("change", MISTAKES)
def test_mistakes(change: str) -> None:
    with pytest.raises(FedsimError, match=f"(?s){MISTAKES[change]}"):
        fedsim.Simulation(fedsim.load("quickstart", change.split(" & ")))
