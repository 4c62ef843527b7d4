"""Keys of the world that other people's measurements asked for: each mistake is refused by its
key, with what is allowed.
"""

import pytest

import fedsim
from fedsim.common.errors import FedsimError

_REGIONS = "network={kind='regions',of=['aws:eu-west-1']"
MISTAKES = {
    "population.host={}": "population.host: .* either 'cores' or 'throughput'",
    "population.host={cores=1,throughput=[[2,2]]}": "population.host: .* either 'cores' or 'throughput'",
    "population.host={cores=1,number=101}": "'host' has 101 hosts for 50 devices; allowed are 1 to 50",
    "population.host={throughput=[[2,3]]}": "'throughput' is 3 at 2 computations; allowed is up to 2",
    "population.host={throughput=[[4,3],[2,2]]}": "'throughput' has points at .*; allowed are ascending",
    "population.host={cores=1,memory='1 GB'}": "'memory' needs 'task_memory'",
    "population.host={cores=1,memory='1 GB',task_memory='2 GB'}": "'memory' of .* holds no task",
    "population={host={cores=1},slow_phases={factor=0.5,mean_normal='1 s',mean_slow='1 s'}}": "slow_phases",
    "population.host={cores=1} & energy.battery={capacity='9 J'}": "energy.battery",
    "population.capacity={kind='hospital-fets'}": "capacity.kind is 'hospital-fets'; .*did you mean 'hospitals-fets'",
    "network={kind='regions'}": "network.of is missing",
    "network={kind='regions',of=['aws:eu-west-9']}": "'of' has 'aws:eu-west-9'; allowed are .*did you mean 'aws:eu-west-",
    f"{_REGIONS},server_in='gcp:us-centra1'}}": "'server_in' has 'gcp:us-centra1'.*did you mean 'gcp:us-central1'",
    f"{_REGIONS},file='none.csv'}}": "network.file: there is no file 'none.csv'",
    "network.protocol.kind='bbr2'": "protocol.kind is 'bbr2'; allowed are fluid, tcp.*did you mean 'bbr'",
    "population={devices=4,device='raspberry-pi-6'}": r"population\.device is 'raspberry-pi-6'; .*mean 'raspberry-pi-5'\?\)",
    "population={devices=2,device=['laptop','laptob']}": r"population\.device is 'laptob'",
    "population.device='laptop'": "'speed' and 'device' both say how fast devices are",
    "population={device='laptop',reference_flops=1e6}": "'reference_flops' is for 'speed'",
    "population={device='laptop',kinds={a={like='labtop'}}}": "like is 'labtop'; allowed are .*did you mean 'laptop'",
    "population={device='a',kinds={a={flops='1 GFLOP/s'}}}": r"population\.kinds\.a\.bandwidth is missing",
    "population={device='a',kinds={a={like='laptop',memory='1 kB'}}}": "training the model takes .* no device has room",
    "population.arrivals.kind='poisson'": "population.arrivals.rate is missing",
    "population.arrivals={kind='poisson',rate='0 /h'}": "population.arrivals.rate is '0 /h': a rate .* above 0",
    "population.arrivals={kind='poisson',rate='30 h'}": "population.arrivals.rate is '30 h': a rate .*/s, /min, /h, /day",
    "population.arrivals={kind='poisson',rate='1 /h',newcomers=51}": "population.arrivals.newcomers is 51; allowed are 1 to 50",
    "population.departures={kind='schedule',times=['1 s','2 s'],devices=[1]}": "departures.devices has 1 devices for 2 times",
    "population.departures={kind='schedule',times=['1 s'],devices=[50]}": "names device 50; allowed are 0 to 49",
    "population.departures={kind='schedule',times=['1 s','2 s'],devices=[2,2]}": "departures.devices names device 2 twice",
    "network.device.up='0 B/s'": "a data rate here must be above 0 B/s",
    "network.device.down={kind='uniform',low='0 B/s',high='1 B/s'}": "a data rate here must be above 0 B/s",
    "network.device.down={kind='uniform',low='1 B/s',high='inf B/s'}": "cannot reach up to infinity",
    "network.device.latency='inf s'": "a time is 0 s, or",
    "network.protocol='tpc'": r"kind is 'tpc'; allowed are fluid, tcp, .*or your own .* \(did you mean 'tcp'\?\)",
    "network.protocol={kind='tcp',segment='0 B'}": "a size here must be above 0 B",
    "network.protocol={kind='tcp',header=66}": "a size needs its unit",
    "world.processes=['link-outages']": "allowed are link-outage, upload-slots.*did you mean 'link-outage'",
    "world.processes=[{link='servr up',every='1 s',lasts='1 s'}]": "processes.0.*no link 'servr up'.*did you mean 'server up'",
    "population.availability={kind='diurnal',most=0.5,least=0.6}": "'least' is 0.6, above 'most', which is 0.5",
    "population.availability={kind='diurnal',most=0.5,least=0.1,peak='2 am'}": "a time of day such as '02:00'",
    "population.calendar.zone='Europe/Belin'": r"population\.calendar\.zone is 'Europe/Belin'.*did you mean 'Europe/Berlin'",
    "population.calendar.zone='../etc'": r"population\.calendar\.zone is '\.\./etc'",
    "population.calendar.starts='noon'": "a date and time, or a time of day, is allowed",
    "world.processes=[{kind='heat',slow_at=0.7,fast_at=0.8}]": "'fast_at' must be below 'slow_at'",
    "world.processes=[{kind='heat',devices=[999]}]": "'heat'.: there is no device 999; allowed are 0 to 49",
    "strategy={kind='diloco',collective='rings'}": "strategy.collective is 'rings'; .*did you mean 'ring'",
    "strategy={kind='diloco',mixing=0.3}": "mixing.*overlap",
}


@pytest.mark.parametrize("change", MISTAKES)
def test_mistakes(change: str) -> None:
    with pytest.raises(FedsimError, match=f"(?s){MISTAKES[change]}"):
        fedsim.Simulation(fedsim.load("quickstart", change.split(" & ")))
