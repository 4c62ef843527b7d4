"""Sections of a scenario that a deployment refuses, or does not use."""

from collections.abc import Iterator

from fedsim.running.scenario import Scenario

_SENDS_PARTS = ("heterofl", "hetlora", "flora")  # strategies that send some tensors of a model


def refusals(scenario: Scenario) -> Iterator[str]:
    """Yield an error message for each part of a scenario that a deployment cannot carry out."""
    strategy = scenario.strategy
    kind = strategy.kind
    if scenario.learning == "off":
        yield 'learning is "off", and real devices send models; set learning = "on"'
    if kind == "flower":
        yield "strategy.kind is 'flower', which is a Flower app already: run it by 'flwr run'"
    if strategy.traits.serverless:
        yield (
            f"strategy.kind is {kind!r}, whose devices send to each other, and Flower's nodes "
            "reach the server alone; allowed are strategies with a server"
        )
    if strategy.traits.at_edges:
        yield (
            f"strategy.kind is {kind!r}, which needs edge servers, and a Flower deployment has "
            "none; allowed are strategies without them"
        )
    keeps_tensors = strategy.traits.kept_by == "strategy" or scenario.model.has_kept_tensors
    sends_whole_models = kind not in _SENDS_PARTS and not keeps_tensors
    if not sends_whole_models:
        yield (
            f"strategy.kind is {kind!r}, with a model of which devices keep or receive some "
            "tensors only; allowed are strategies that send whole models"
        )
    if scenario.malicious is not None:
        yield "malicious makes devices attack, which no real device does on command; leave it out"
    if scenario.drift is not None:
        yield "drift changes data on command, and real data change by themselves; leave it out"
    if scenario.energy is not None:
        yield "energy is the charge of simulated batteries, which nodes do not report; leave it out"
    if scenario.population.tested_only is not None:
        yield "population.tested_only are devices that no node is; leave it out"
    if scenario.population.short_of_memory == "refuse":
        yield (
            "population.short_of_memory is 'refuse', which keeps simulated devices away, and every "
            "node that is connected takes part; allowed are 'fail', and 'fewer-layers', by which a "
            "node trains the layers that fit into the memory of its device's kind"
        )
    if scenario.world.processes:
        yield "world.processes act on simulated devices; leave them out"
    yield from _refused_training(scenario)


def _refused_training(scenario: Scenario) -> Iterator[str]:
    """Yield an error message for each refused setting of the trainer, the server or the codecs."""
    if scenario.training.state == "sent":
        yield (
            "training.state is 'sent', which a deployment cannot send; allowed are 'fresh' and "
            "'kept'"
        )
    if scenario.training.stops_early:
        yield (
            f"training.kind is {scenario.training.kind!r}, which may stop early; a deployment "
            "needs a trainer that takes all batches"
        )
    if scenario.server.speed is not None:
        yield "server.speed is a simulated server's; the real one takes its own time; leave it out"
    for direction, codec in (("down", scenario.messages.down), ("up", scenario.messages.up)):
        if not codec.packs:
            yield (
                f"messages.{direction} is {codec.kind!r}, whose bytes are counted and not "
                "written; allowed are 'plain' in float32 or float64 without a size, the lossy "
                "codecs (float16, int8, qsgd, top-k ...), and own codecs with 'pack' and 'unpack'"
            )


def unused(scenario: Scenario) -> Iterator[str]:
    """Yield the dotted key of each part of a scenario that has no effect in a deployment.

    An example is the availability of devices, which is real in a deployment.
    """
    population = scenario.population
    if population.availability.kind != "always":
        yield "population.availability"
    for name in ("arrivals", "departures", "slow_phases", "stragglers", "host"):
        if getattr(population, name) is not None:
            yield f"population.{name}"
    if scenario.costs is not None:
        yield "costs"
    if scenario.meters:
        yield "meters"
    if scenario.server.patience:
        yield "server.patience"
