"""A scenario in plain English, made from its resolved tables, for people who have not read the file."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedsim.analysis import style
from fedsim.analysis.report.markup import plain
from fedsim.strategies import strategy_name as registered_name

Facts = Mapping[str, Any]

_SOURCES = {
    "digits": "scikit-learn's 1,797 hand-written digits",
    "mnist": "MNIST's hand-written digits",
    "fashion": "Fashion-MNIST's pictures of clothes",
    "cifar10": "CIFAR-10's colour pictures",
    "emnist": "EMNIST's hand-written letters and digits",
    "synthetic": "synthetic samples, drawn for each device",
    "huggingface": "samples from a data set folder of Hugging Face's",
    "npz": "samples from a file of arrays",
    "dataset": "samples of a data set of the user's own",
    "text": "characters of plays by Shakespeare",
    "linear": "points of a noisy linear law",
}
_PARTITIONS = {
    "iid": "dealt evenly at random",
    "shards": "sorted by class and dealt in shards, {per_device} a device",
    "dirichlet": "each class cut among them in random shares (Dirichlet, alpha {alpha:g})",
    "power-law": "{classes_per_device} classes a device, in very unequal amounts (a power law)",
    "by-label": "by label",
    "femnist": "{classes_per_device} classes a device, in unequal amounts",
    "ditto": "{classes_per_device} classes a device, in unequal amounts",
    "class-bias": "{share:.0%} of a device's from {classes_per_device} classes of its own",
    "class-imbalance": "each device with one majority class, most often a middle one",
    "label-groups": "dealt so that each of {groups} groups of devices has classes of its own",
    "rotations": "turned by {degrees}, each by another group of devices",
    "permutations": "whose labels each of {groups} groups of devices names in its own way",
    "file": "dealt as a file says",
    "synthetic": "in lognormal amounts",
}
_SIZES = {
    "uniform": "{low:,} to {high:,}",
    "long-tail": "long-tailed numbers of",
    "list": "given numbers of",
    "file": "as many as a file says:",
}
_MODELS = {"logistic": "a logistic regression", "mlp": "a perceptron", "module": "a model of the user's own", "size": "a model"}
_AVAILABILITY = {
    "always": "Devices can be reached at any time.",
    "renewal": "Devices can be reached for {mean_on} and then not for {mean_off}, on average.",
    "flash": "Devices can be reached when real phones were idle, charging and on Wi-Fi (FLASH).",
    "diurnal": "{least:.0%} to {most:.0%} of the devices can be reached, most at {peak} local time.",
    "intervals": "Devices can be reached when a file says so.",
}
_CHARGING = {
    "never": "are never charged",
    "always": "are plugged in all the time",
    "reached": "charge while their devices can be reached",
    "renewal": "are plugged in now and then",
    "daily": "are plugged in each day at a time of their own",
}
_DRIFT = {
    "swap-all": "devices {chance}exchange all their data with another one",
    "swap-part": "devices {chance}exchange the samples of two classes with another one",
    "incremental": "devices hold a larger share of their data",
    "label-permutation": "devices {chance}rename their classes",
    "rotation": "devices' pictures {chance}turn by quarter turns",
}
_AMOUNTS = {
    "uniform": "{low} to {high}",
    "lognormal": "{median} in the median (lognormal, a factor of {spread:g})",
    "list": "what is listed for each",
    "file": "what a file says",
}


def describe(scenario: Facts) -> str:
    """One paragraph on the tables of a resolved ``scenario.toml``; what is not known here is left out."""
    parts = (_data, _training, _speed, _hosts, _availability, _lifetimes, _network)
    acts = scenario.get("world", {}).get("processes", ())
    said = [*(_said(part, scenario) for part in parts), *(_said(_process, act) for act in acts)]
    return " ".join(filter(None, (*said, *(_said(part, scenario) for part in (_energy, _drift, _strategy, _end)))))


def strategy_name(kind: str) -> str:
    """A strategy as its paper writes it; a strategy of the user's own by its class."""
    return registered_name(kind) or plain(kind.rpartition(":")[2], 60)


def without_places(value: Any) -> Any:
    """A scenario without the folders of the machine that it was run on."""
    if isinstance(value, dict):
        return {key: without_places(item) for key, item in value.items() if key != "root"}
    if isinstance(value, list):
        return [without_places(item) for item in value]
    if isinstance(value, str) and value.startswith(("/", "~", "\\")):
        return f"…/{value.replace(chr(92), '/').rpartition('/')[2]}"
    return value


def _said(part: Callable[[Facts], str], scenario: Facts) -> str:
    try:
        return part(scenario)
    except (KeyError, TypeError, ValueError, AttributeError):  # a scenario of another version, or made by hand
        return ""


def _data(scenario: Facts) -> str:
    population, data = scenario["population"], scenario["data"]
    devices = "One device holds" if population["devices"] == 1 else f"{population['devices']:,} devices hold"
    if "pooled_from" in data:
        devices = f"One device holds all the data of {data['pooled_from']:,}:"
    if "samples" in population:
        sizes = population["samples"]
        return f"{devices} {_SIZES[sizes['kind']].format_map(sizes)} training samples each."
    source = data["source"]["kind"]
    dealt = _said(_dealt, data["partition"])
    return f"{devices} {_SOURCES.get(source, source)}{', ' if dealt else ''}{dealt}."


def _dealt(partition: Facts) -> str:
    degrees = _listed(f"{turn}°" for turn in partition.get("degrees", ()))
    return _PARTITIONS[partition["kind"]].format_map({**partition, "degrees": degrees})


def _training(scenario: Facts) -> str:
    model, training = scenario["model"], scenario["training"]
    name = _MODELS.get(model["kind"], f"the network {model['kind']}")
    if model["kind"] == "mlp":
        name += f" with {_listed(model.get('hidden', [128]))} hidden units"
    if scenario.get("learning") == "off":
        return f"Nothing is learned: the run counts time and bytes, as {name} would take them."
    rate = f"learning rate {training['lr']:g}" + (" (falling)" if training.get("lr_decay", 1) < 1 else "")
    momentum = f", momentum {training['momentum']:g}" if training.get("momentum") else ""
    ways = {"sgd": "SGD", "torch": training.get("optimiser", "")}
    by = ways.get(training.get("kind", "sgd")) or f"the trainer {training['kind']}"
    return f"They train {name} by {by} ({rate}, batches of {training['batch_size']:,}{momentum})."


def _speed(scenario: Facts) -> str:
    population = scenario["population"]
    words = "Training takes no simulated time"
    if "capacity" in population:
        words = "Their speeds and links are those of real phones (FedScale)"
    elif device := population.get("device"):
        kinds = _amount(device)
        if shares := device.get("shares"):
            parts = zip(device["values"], shares, strict=True)
            kinds = _listed(f"{name} ({share / sum(shares):.0%})" for name, share in parts)
        words = f"The devices are {kinds}, and take as long as the model's operations take on them"
    elif "speed" in population:
        words = f"A device's speed is {_amount(population['speed'])}"
    jitter = _spelled_out(population.get("jitter", 0.0))
    if jitter.get("value") != 0.0:
        words += f"; an epoch's time varies by {_amount(jitter, '.0%')}"
    if slow := population.get("stragglers"):
        words += f"; {slow['share']:.0%} of them are slowed to {_amount(_spelled_out(slow['factor']), '.0%')} of their speed"
    return f"{words}."


def _hosts(scenario: Facts) -> str:
    if (host := scenario["population"].get("host")) is None:
        return ""
    cores = f" with {host['cores']:,} cores" if "cores" in host else ""
    queue = f"; {host['workers']:,} tasks run at once, others queue" if "workers" in host else ""
    return f"They run on {style.counted(host['number'], 'host')}{cores}{queue}."


def _availability(scenario: Facts) -> str:
    own = scenario["population"].get("availability", {"kind": "always"})
    return _AVAILABILITY[own["kind"]].format_map(own)


def _lifetimes(scenario: Facts) -> str:
    arrivals, departures = (scenario["population"].get(what) for what in ("arrivals", "departures"))
    words = ["some arrive later" + (f" ({arrivals['rate']})" if "rate" in arrivals else "")] if arrivals else []
    words += [(f"{departures['share']:.0%}" if "share" in departures else "some") + " leave for good"] if departures else []
    return _sentence(words, " and ")


def _network(scenario: Facts) -> str:
    network = scenario["network"]
    device, server, edge = (network.get(what) for what in ("device", "server", "edge"))
    own = _limits(device) if device and "capacity" not in scenario["population"] else ""
    words = [f"each device's link has {own}" if own else ""]
    if device and not _is_none(device.get("latency", {}).get("value", "0 s")):
        words.append(f"messages have {_amount(device['latency'])} of latency")
    if limits := _limits(server) if isinstance(server, Mapping) else "":
        words.append(f"the server's link, which all share, has {limits}")
    if network["kind"] == "tree":
        each = _limits(network.get("cell", {}))
        words.append(f"they are in {network['cells']:,} cells" + (f" with {each} each" if each else ""))
    elif network["kind"] == "graph":
        words.append("they reach the server through a network that is read from a file")
    if edge:
        where = "in each cell" if network["kind"] == "tree" else "at some of its nodes"
        far = "" if _is_none(edge["latency"]) else f", with {edge['latency']} of latency from there to the server"
        words.append(f"there is an edge server {where}{far}")
    protocol = network.get("protocol", {}).get("kind", "fluid")
    words.append("" if protocol == "fluid" else f"messages travel by {protocol}")
    return _sentence(words, "; ") or "Messages take no simulated time."


def _limits(link: Facts) -> str:
    """The rates of a link that has any, such as ``1 Mbit/s down and 1 Mbit/s up``."""
    rates = {way: _spelled_out(link[way]) for way in ("down", "up") if way in link}
    known = {way: rate for way, rate in rates.items() if not str(rate.get("value", "")).startswith("inf")}
    return _listed(f"{_amount(rate)} {way}" for way, rate in known.items())


def _process(process: Facts) -> str:
    kind = process["kind"]
    if kind == "upload-slots":
        return f"The server takes {style.counted(process['slots'], 'upload')} at a time; the others queue."
    if kind == "heat":
        return "Devices that compute get warm, and are then slower until they have cooled."
    if kind == "link-outage":
        meanwhile = "nothing" if _is_none(process["rate"]) else f"{process['rate']} only"
        what = f"the link {plain(process['link'], 60)} carries {meanwhile}"
    elif kind == "edge-outage":
        what = f"edge server {process['edge']} {'crashes and is gone' if process['work'] == 'wasted' else 'is cut off'}"
    else:
        return f"The process {plain(kind.rpartition(':')[2], 60)}, of the user's own, acts on the world."
    return f"Every {process['every']} {what} for {process['lasts']}{', on average' if process['random'] else ''}."


def _energy(scenario: Facts) -> str:
    if not (energy := scenario.get("energy")):
        return ""
    presets = f" as presets say ({_listed(energy['preset'])})" if "preset" in energy else ""
    words = f"Energy is counted{presets}{', carbon too' if 'carbon' in energy else ''}"
    if battery := energy.get("battery"):
        words += f"; batteries hold {_amount(battery['capacity'])} and {_CHARGING[battery['charging']['kind']]}"
    return f"{words}."


def _drift(scenario: Facts) -> str:
    if not (drift := scenario.get("drift")):
        return ""
    at, when = drift["at"], "At set times"
    if "every_rounds" in at:
        when = "Every round" if at["every_rounds"] == 1 else f"Every {at['every_rounds']:,} rounds"
    elif "every" in at:
        when = f"Every {at['every']}"
    elif "rounds" in at:
        when = f"At round{'s' if len(at['rounds']) > 1 else ''} {_listed(at['rounds'])}"
    chance = f"with probability {drift['probability']:g} " if "probability" in drift else ""
    return f"{when}, {_DRIFT[drift['kind']].format(chance=chance)}."


def _strategy(scenario: Facts) -> str:
    own = scenario["strategy"]
    name, asked = strategy_name(own["kind"]), own.get("clients_per_round")
    epochs = style.counted(own["local_epochs"], "local epoch")
    if "concurrency" in own:
        buffer = f", and {own['buffer']} answers make a version of the model" if "buffer" in own else ""
        return f"{name} keeps {own['concurrency']:,} devices at work for {epochs} each{buffer}; it has no rounds."
    if own["kind"] == "fedat":
        return f"{name} has {own['tiers']} tiers; each asks {asked:,} of its devices for {epochs}, and waits for no other tier."
    who = f"{style.counted(asked, 'device')} a round" if asked else "all devices"
    if own.get("participation", 1) < 1 and asked is None:
        who = f"{own['participation']:.0%} of the devices a round"
    if "kappa2" in own:
        turn = f"{own['kappa1']:,} steps" if "kappa1" in own else epochs
        epochs = f"{style.counted(own['kappa2'], 'edge round')} of {turn}"
    deadline = own.get("deadline") or ""
    if isinstance(deadline, Mapping) and deadline.get("kind") == "relative":
        deadline = f"{deadline['times']:g} times the mean time of {deadline['epochs']} epochs"
    elif isinstance(deadline, Mapping):
        deadline = deadline.get("time", "a time that follows from what earlier rounds took")
    words = [f"{name} asks {who} for {epochs}, {f'within {deadline}' if deadline else 'and waits for all of them'}"]
    counts = {parts: own.get(parts) for parts in ("groups", "clusters", "tiers")}
    words += [f"it forms {count} {parts}" for parts, count in counts.items() if isinstance(count, int) and count > 1]
    return "; ".join([*words, *([f"its proximal term weighs {own['mu']:g}"] if "mu" in own else [])]) + "."


def _end(scenario: Facts) -> str:
    stop, what = scenario["stop"], "versions of the model" if "concurrency" in scenario["strategy"] else "rounds"
    ends = [f"after {stop['rounds']:,} {what}"] if "rounds" in stop else []
    ends += [f"after {stop['simulated_time']} of simulated time"] if "simulated_time" in stop else []
    ends += [f"at an accuracy of {stop['accuracy']:g}"] if "accuracy" in stop else []
    return f"The run ends {_listed(ends, 'or')}; what is drawn at random follows from the seed {scenario['seed']}."


def _spelled_out(value: Any) -> Facts:
    """A distribution; of one of an older version, or of one that was written by hand, a constant one."""
    return value if isinstance(value, Mapping) else {"kind": "constant", "value": value}


def _amount(own: Facts, form: str = "") -> str:
    """A quantity that may differ between devices; ``form`` is how its numbers are written."""
    numbers = {key: format(own[key], form) for key in ("low", "high", "median") if key in own}
    if own["kind"] == "choice":
        return _listed((format(value, form) for value in own["values"]), "or")
    return format(own["value"], form) if own["kind"] == "constant" else _AMOUNTS[own["kind"]].format_map({**own, **numbers})


def _is_none(quantity: Any) -> bool:
    return str(quantity).startswith("0 ")


def _sentence(words: Iterable[str], between: str) -> str:
    text = between.join(filter(None, words))
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _listed(words: Iterable[Any], last: str = "and") -> str:
    texts = [str(word) for word in words]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {last} {texts[-1]}" if texts else ""
