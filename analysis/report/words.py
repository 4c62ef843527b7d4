"""A scenario in plain English, made from its resolved tables, for people who have not read the file."""

from collections.abc import Callable, Mapping
from typing import Any

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
_MODELS = {"logistic": "a logistic regression", "mlp": "a perceptron", "module": "a model of the user's own", "size": "a model"}


def describe(scenario: Facts) -> str:
    """One paragraph on the tables of a resolved ``scenario.toml``; what is not known here is left out."""
    parts = (
        _data,
        _training,
        _speed,
        _hosts,
        _availability,
        _lifetimes,
        _network,
        _processes,
        _energy,
        _drift,
        _strategy,
        _end,
    )
    sentences = (_said(part, scenario) for part in parts)
    return " ".join(sentence for sentence in sentences if sentence)


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
    devices = f"{population['devices']:,} devices hold"
    if "pooled_from" in data:
        devices = f"One device holds all the data of {data['pooled_from']:,}:"
    elif population["devices"] == 1:
        devices = "One device holds"
    if "samples" in population:
        sizes = population["samples"]
        words = f"{sizes['low']:,} to {sizes['high']:,}" if sizes["kind"] == "uniform" else _SIZES[sizes["kind"]]
        return f"{devices} {words} training samples each."
    source = data["source"]["kind"]
    dealt = _said(lambda partition: _PARTITIONS[partition["kind"]](partition), data["partition"])
    return f"{devices} {_SOURCES.get(source, source)}{', ' if dealt else ''}{dealt}."


_SIZES = {"long-tail": "long-tailed numbers of", "list": "given numbers of", "file": "as many as a file says:"}


def _sizes(sizes: Facts) -> str:
    return f", {sizes['low']:,} to {sizes['high']:,} samples each" if sizes.get("kind") == "uniform" else ""


_PARTITIONS: dict[str, Callable[[Facts], str]] = {
    "iid": lambda _: "dealt evenly at random",
    "shards": lambda p: (
        f"sorted by class and dealt in shards, {p['per_device'] if p['per_device'] > 1 else 'one'} a device"
        + (f", {p['similarity']:.0%} of them at random instead" if p["similarity"] else "")
    ),
    "dirichlet": lambda p: f"each class cut among them in random shares (Dirichlet, alpha {p['alpha']:g})",
    "power-law": lambda p: f"{p['classes_per_device']} classes a device, in very unequal amounts (a power law)",
    "by-label": lambda _: "by label",
    "femnist": lambda p: f"{p['classes_per_device']} classes a device, in unequal amounts",
    "ditto": lambda p: f"{p['classes_per_device']} classes a device, in unequal amounts",
    "class-bias": lambda p: (
        f"{p['share']:.0%} of a device's from {p['classes_per_device']} classes of its own{_sizes(p['sizes'])}"
    ),
    "class-imbalance": lambda _: "each device with one majority class, most often a middle one",
    "label-groups": lambda p: f"dealt so that each of {p['groups']} groups of devices has classes of its own",
    "rotations": lambda p: f"turned by {_listed([f'{turn}°' for turn in p['degrees']])}, each by another group of devices",
    "permutations": lambda p: f"whose labels each of {p['groups']} groups of devices names in its own way",
    "file": lambda _: "dealt as a file says",
    "synthetic": lambda _: "in lognormal amounts",
}


def _training(scenario: Facts) -> str:
    model, training = scenario["model"], scenario["training"]
    name = _MODELS.get(model["kind"], f"the network {model['kind']}")
    if model["kind"] == "mlp":
        name += f" with {_listed([str(width) for width in model.get('hidden', [128])])} hidden units"
    if scenario.get("learning") == "off":
        return f"Nothing is learned: the run counts time and bytes, as {name} would take them."
    rate = f"learning rate {training['lr']:g}" + (" (falling)" if training.get("lr_decay", 1) < 1 else "")
    momentum = f", momentum {training['momentum']:g}" if training.get("momentum") else ""
    ways = {"sgd": "SGD", "torch": training.get("optimiser", "")}
    by = ways.get(training.get("kind", "sgd")) or f"the trainer {training['kind']}"
    return f"They train {name} by {by} ({rate}, batches of {training['batch_size']:,}{momentum})."


def _speed(scenario: Facts) -> str:
    population = scenario["population"]
    if "capacity" in population:
        words = "Their speeds and links are those of real phones (FedScale)"
    elif "device" in population:
        words = f"The devices are {_kinds(population['device'])}, and take as long as the model's operations take on them"
    elif "speed" not in population:
        return "Training takes no simulated time."
    else:
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
    where = "They run on one host" if host["number"] == 1 else f"They run on {host['number']:,} hosts, each"
    points = [f"{work:g} times the work of one at {count:g} computations" for count, work in host.get("throughput", ())]
    words = f"{where} with {host['cores']:,} cores" if "cores" in host else f"{where} with {_listed(points)}"
    words += f"; {host['workers']:,} tasks run at once, others queue" if "workers" in host else ""
    words += f"; as many tasks of {host['task_memory']} run at once as fit into {host['memory']}" if "memory" in host else ""
    return f"{words}{'' if str(host['start_up']).startswith('0 ') else '; a task starts up for ' + host['start_up']}."


def _kinds(device: Facts) -> str:
    """The kinds of devices, with their shares if there are some."""
    if device["kind"] != "choice" or "shares" not in device:
        return _amount(device).replace("for each", "for each (by kind)")
    shares, whole = device["shares"], sum(device["shares"])
    return _listed([f"{name} ({share / whole:.0%})" for name, share in zip(device["values"], shares, strict=True)])


def _availability(scenario: Facts) -> str:
    own = scenario["population"].get("availability", {"kind": "always"})
    match own["kind"]:
        case "renewal":
            return f"Devices can be reached for {own['mean_on']} and then not for {own['mean_off']}, on average."
        case "flash":
            return "Devices can be reached when real phones were idle, charging and on Wi-Fi (FLASH)."
        case "diurnal":
            return f"{own['least']:.0%} to {own['most']:.0%} of the devices can be reached, most at {own['peak']} local time."
        case kind:
            return f"Devices can be reached {'when a file says so' if kind == 'intervals' else 'at any time'}."


def _lifetimes(scenario: Facts) -> str:
    population = scenario["population"]
    words = []
    arrivals, departures = population.get("arrivals"), population.get("departures")
    if arrivals:
        which = f"{arrivals['newcomers']:,} of them" if "newcomers" in arrivals else "Some"
        words.append(f"{which} arrive later ({arrivals['rate']})" if "rate" in arrivals else "Some arrive later")
    if departures:
        share = f"{departures['share']:.0%}" if "share" in departures else "some"
        stay = f", after {departures['mean_stay']} on average" if "mean_stay" in departures else ""
        words.append(f"{share} leave for good{stay}")
    text = " and ".join(words)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _network(scenario: Facts) -> str:
    network = scenario["network"]
    device = network.get("device", {})
    own = "" if "capacity" in scenario["population"] else _limits(device)
    links = f"Each device's link has {own}" if own else ""
    latency = device.get("latency")
    if latency and not str(latency.get("value", "")).startswith("0 "):
        links += f"{', with ' if links else 'Messages have '}{_amount(latency)} of latency"
    server = network.get("server")
    limits = _limits(server) if isinstance(server, Mapping) else ""
    shared = f"the server's link, which all share, has {limits}" if limits else ""
    edges = _edge_servers(network)
    if network["kind"] == "tree":
        shared = f"{'; '.join(filter(None, [shared, _cells(network)]))}"
    elif network["kind"] == "graph":
        shared = "they reach the server through a network that is read from a file"
    protocol = network.get("protocol", {}).get("kind", "fluid")
    sent = "" if protocol == "fluid" else f"messages travel by {protocol}"
    text = "; ".join(filter(None, [links, shared, edges, sent]))
    return f"{text[:1].upper()}{text[1:]}." if text else "Messages take no simulated time."


def _cells(network: Facts) -> str:
    limits = _limits(network.get("cell", {}))
    return f"they are in {network['cells']:,} cells" + (f" with {limits} each" if limits else "")


def _limits(link: Facts) -> str:
    """The rates of a link that has any, such as ``1 Mbit/s down and 1 Mbit/s up``."""
    rates = {way: _spelled_out(link[way]) for way in ("down", "up") if way in link}
    return _listed(
        [f"{_amount(rate)} {way}" for way, rate in rates.items() if not str(rate.get("value", "")).startswith("inf")]
    )


def _edge_servers(network: Facts) -> str:
    if "edge" not in network:
        return ""
    edge, where = network["edge"], "in each cell"
    if network["kind"] != "tree":
        nodes = edge.get("nodes") or list(dict.fromkeys(network.get("attach", [])))
        where = f"at {len(nodes):,} of its nodes"
    latency = "" if str(edge["latency"]).startswith("0 ") else f", with {edge['latency']} of latency from there to the server"
    return f"there is an edge server {where}{latency}"


def _processes(scenario: Facts) -> str:
    """A sentence for each process of the world."""
    return " ".join(map(_process, scenario.get("world", {}).get("processes", ())))


def _process(process: Facts) -> str:
    match process["kind"]:
        case "upload-slots":
            number = process["slots"]
            return f"The server takes {number:,} upload{'' if number == 1 else 's'} at a time; the others queue."
        case "link-outage" | "edge-outage" as kind:
            if kind == "link-outage":
                left = process["rate"]
                meanwhile = "nothing" if str(left).startswith("0 ") else f"{left} only"
                what = f"the link {plain(process['link'], 60)} carries {meanwhile}"
            else:
                what = f"edge server {process['edge']} {'crashes and is gone' if process['work'] == 'wasted' else 'is cut off'}"
            return f"Every {process['every']} {what} for {process['lasts']}{', on average' if process['random'] else ''}."
        case "heat":
            which = "Devices" if process.get("devices") is None else f"{len(process['devices']):,} devices"
            slowed = f"slowed to {process['factor']} of their speed until they have cooled"
            return f"{which} that compute get warm, and are then {slowed}."
        case own:
            return f"The process {plain(own.rpartition(':')[2], 60)}, of the user's own, acts on the world."


def _energy(scenario: Facts) -> str:
    energy = scenario.get("energy")
    if not energy:
        return ""
    presets = f" as presets say ({_listed(energy['preset'])})" if "preset" in energy else ""
    words = f"Energy is counted{presets}{', carbon too' if 'carbon' in energy else ''}"
    battery = energy.get("battery")
    if not battery:
        return f"{words}."
    plugged = {
        "never": "are never charged",
        "always": "are plugged in all the time",
        "reached": "charge while their devices can be reached",
        "renewal": "are plugged in now and then",
        "daily": "are plugged in each day at a time of their own",
    }[battery["charging"]["kind"]]
    return f"{words}; batteries hold {_amount(battery['capacity'])} and {plugged}."


def _drift(scenario: Facts) -> str:
    drift = scenario.get("drift")
    if not drift:
        return ""
    at = drift["at"]
    if "every_rounds" in at:
        when = "Every round" if at["every_rounds"] == 1 else f"Every {at['every_rounds']:,} rounds"
    elif "every" in at:
        when = f"Every {at['every']}"
    else:
        when = f"At round{'s' if len(at['rounds']) > 1 else ''} {_listed(at['rounds'])}" if "rounds" in at else "At set times"
    chance = f"with probability {drift['probability']:g} " if "probability" in drift else ""
    what = {
        "swap-all": f"devices {chance}exchange all their data with another one",
        "swap-part": f"devices {chance}exchange the samples of two classes with another one",
        "incremental": "devices hold a larger share of their data",
        "label-permutation": f"devices {chance}rename their classes",
        "rotation": f"devices' pictures {chance}turn by quarter turns",
    }[drift["kind"]]
    return f"{when}, {what}."


def _strategy(scenario: Facts) -> str:
    own = scenario["strategy"]
    name = strategy_name(own["kind"])
    epochs = f"{own['local_epochs']} local epoch{'' if own['local_epochs'] == 1 else 's'}"
    if "concurrency" in own:
        buffer = f", and {own['buffer']} answers make a version of the model" if "buffer" in own else ""
        return f"{name} keeps {own['concurrency']:,} devices at work for {epochs} each{buffer}; it has no rounds."
    asked = own.get("clients_per_round")
    if own["kind"] == "fedat":
        return f"{name} has {own['tiers']} tiers; each asks {asked:,} of its devices for {epochs}, and waits for no other tier."
    who = "all devices" if asked is None else f"{asked:,} device{'' if asked == 1 else 's'} a round"
    if "participation" in own and asked is None:
        who = f"{own['participation']:.0%} of the devices a round" if own["participation"] < 1 else "all devices"
    if "kappa2" in own:
        turn = f"{own['kappa1']:,} steps" if "kappa1" in own else epochs
        epochs = f"{own['kappa2']} edge round{'' if own['kappa2'] == 1 else 's'} of {turn}"
    words = f"{name} asks {who} for {epochs}"
    deadline = own.get("deadline")
    if isinstance(deadline, Mapping) and deadline.get("kind") == "relative":
        deadline = f"{deadline['times']:g} times the mean time of {deadline['epochs']} epochs"
    elif isinstance(deadline, Mapping):
        deadline = deadline.get("time", "a time that follows from what earlier rounds took")
    if deadline:
        words += f", within {deadline}"
    else:
        words += ", and waits for all of them"
    for parts in ("groups", "clusters", "tiers"):
        count = own.get(parts)
        if count and count != 1 and (parts != "groups" or isinstance(count, int)):
            words += f"; it forms {count} {parts}"
    if "mu" in own:
        words += f"; its proximal term weighs {own['mu']:g}"
    return f"{words}."


def _end(scenario: Facts) -> str:
    stop = scenario["stop"]
    ends = []
    if "rounds" in stop:
        ends.append(
            f"after {stop['rounds']:,} {'versions of the model' if 'concurrency' in scenario['strategy'] else 'rounds'}"
        )
    if "simulated_time" in stop:
        ends.append(f"after {stop['simulated_time']} of simulated time")
    if "accuracy" in stop:
        ends.append(f"at an accuracy of {stop['accuracy']:g}")
    return f"The run ends {_listed(ends, 'or')}; what is drawn at random follows from the seed {scenario['seed']}."


def _spelled_out(value: Any) -> Facts:
    """A distribution; of one of an older version, or of one that was written by hand, a constant one."""
    return value if isinstance(value, Mapping) else {"kind": "constant", "value": value}


def _amount(own: Facts, form: str = "") -> str:
    """A quantity that may differ between devices; ``form`` is how its numbers are written."""
    match own["kind"]:
        case "constant":
            return format(own["value"], form)
        case "uniform":
            return f"{own['low']:{form}} to {own['high']:{form}}"
        case "lognormal":
            return f"{own['median']:{form}} in the median (lognormal, a factor of {own['spread']:g})"
        case "choice":
            return _listed([format(value, form) for value in own["values"]], "or")
        case "list":
            return "what is listed for each"
        case "file":
            return "what a file says"
    raise ValueError(own["kind"])


def _listed(words: list[Any], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    texts = [str(word) for word in words]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {last} {texts[-1]}" if texts else ""
