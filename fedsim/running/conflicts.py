"""Conflicts between sections of a scenario, each of which is valid by itself."""

from collections.abc import Iterator

from fedsim.common.errors import nearest
from fedsim.federation.codecs import Plain
from fedsim.federation.costs import ServerSpec
from fedsim.federation.messages_spec import MessagesSpec
from fedsim.federation.unseen import COLUMNS, LOSS
from fedsim.running.own_training import check_local_keys
from fedsim.running.sections import Sections
from fedsim.strategies.parts.aggregation import Aggregation, Mean, Weighted
from fedsim.strategies.round_params import SynchronousParams

SECTIONS_OF_LEARNING = (
    "learning",
    "data",
    "model",
    "objective",
    "training",
    "drift",
    "malicious",
    "messages",
    "evaluation",
)
"""Names of the sections that have no effect if the strategy trains by its own code."""


def conflicts(scenario: Sections) -> Iterator[str]:
    """Find values in different sections of a scenario that cannot be combined.

    Args:
        scenario: the scenario, each of whose sections is valid.

    Yields:
        A message for the user for each conflict.
    """
    yield from _check_learning(scenario)
    yield from check_local_keys(scenario)
    yield from _check_draws(scenario)
    yield from _check_edges(scenario)
    if scenario.strategy.traits.serverless:
        yield from _check_serverless(scenario)
    if scenario.malicious is not None:
        scenario.malicious.check(scenario.population.trainable)
    yield from _check_world(scenario)
    yield from _check_messages(scenario)
    yield from _check_objective(scenario)
    yield from _check_progress(scenario)
    yield from _check_tested_only(scenario)
    yield from _check_training(scenario)
    if scenario.training.state == "sent":
        yield from _check_sent_state(scenario)


def _check_learning(scenario: Sections) -> Iterator[str]:
    """Yield a message for each key on learning that has no effect in this scenario.

    These are keys that a strategy with its own training code does not use, such as the section
    ``[model]``, and sample counts (``population.samples``) of devices that have data.
    """
    strategy = scenario.strategy
    if strategy.traits.brings_learning:
        for section in SECTIONS_OF_LEARNING:
            if section in scenario.model_fields_set:
                yield (
                    f"{section} is not used by strategy.kind = {strategy.kind!r}, which brings its "
                    "own; leave it out"
                )
        short = scenario.population.short_of_memory
        if short != "fail":
            yield (
                f"population.short_of_memory is {short!r}, and {strategy.called} does not say how "
                "much memory its trainings need; leave it out"
            )
    elif scenario.population.samples is not None and scenario.learning == "on":
        yield 'population.samples gives sizes without data; allowed with learning = "off" only'


def _check_draws(scenario: Sections) -> Iterator[str]:
    """Yield a message if a round may draw a client twice, and the strategy does not allow this."""
    strategy = scenario.strategy
    selection = strategy.selected_by
    if selection is None or not selection.repeats:
        return
    aggregation = strategy.aggregated_by
    over_selection = 1.0  # a factor of 1: no more clients are selected than needed
    if isinstance(strategy, SynchronousParams):
        over_selection = strategy.over_selection
    problem = ""
    if not strategy.averages_updates:
        problem = f"strategy.kind is {strategy.kind!r}"
    elif type(aggregation) not in (Weighted, Mean):
        problem = f"strategy.aggregation is {_kind_of(aggregation)!r}"
    elif strategy.secured_by is not None:
        problem = "strategy.secure_aggregation is given"
    elif over_selection > 1.0:
        problem = f"strategy.over_selection is {over_selection:g}"
    if problem:
        yield (
            f"strategy.selection draws clients with replacement, and {problem}; allowed are "
            "'fedavg' and 'fedprox' with 'weighted' or 'mean', without over_selection and secure "
            "aggregation, in which an update of a client that was drawn twice counts twice"
        )


def _check_edges(scenario: Sections) -> Iterator[str]:
    """Yield a message if the strategy needs edge servers and the network has none.

    Raises:
        ScenarioError: the strategy cannot use this count of edge servers.
    """
    strategy = scenario.strategy
    if not strategy.traits.at_edges:
        return
    edges = scenario.network.edge_servers
    if edges:
        strategy.check_edges(edges)
        return
    allowed = 'network.kind "tree" or "graph" and a table network.edge ("edge = {}")'
    yield (
        f"strategy.kind is {strategy.kind!r}, which needs edge servers, and the network has none; "
        f"allowed with {allowed}"
    )


def _check_serverless(scenario: Sections) -> Iterator[str]:
    """Yield a message for each section that needs a server, for a strategy without a server."""
    up = scenario.messages.up
    problems = []
    # devices send whole models to each other by the codec ``up``, so it must be able to encode
    # models that a server would send
    if "down" not in up.ways or up.stores_residual:
        reason = (
            f"writes changes of a model ({up.kind!r}), or keeps what it leaves out; not "
            "between devices"
        )
        problems.append(("messages.up", reason))
    if scenario.energy is not None:
        problems.append(("energy", "counts what tasks alone draw"))
    if scenario.server != ServerSpec():
        problems.append(("server", "is how long a server computes and waits"))
    if scenario.messages.down.kind != "plain":
        problems.append(("messages.down", "is how a server writes models"))
    if scenario.network.edge_servers:
        problems.append(("network.edge", "are servers"))
    for key, reason in problems:
        yield (
            f"{key} is given, which {reason}; not for strategy.kind = "
            f"{scenario.strategy.kind!r}, which has no server"
        )


def _check_world(scenario: Sections) -> Iterator[str]:
    """Yield a message for each conflict between keys on devices, links, batteries, checkpoints."""
    population = scenario.population
    if scenario.drift is not None and population.samples is not None:
        yield (
            "population.samples gives sizes without data, so there is nothing for [drift] to change"
        )
    if population.capacity is not None and scenario.network.has_device_rates:
        yield (
            "population.capacity and network.device both say how fast links are; give one of them"
        )
    has_batteries = scenario.energy is not None and scenario.energy.battery is not None
    if population.host is not None and has_batteries:
        yield (
            "population.host and energy.battery: devices that share a machine have no battery "
            "of their own"
        )
    checkpoint = scenario.checkpoint
    is_saved = checkpoint.rounds or checkpoint.time or checkpoint.last
    obstacle = scenario.not_restorable  # why the run cannot be resumed; None if it can
    if obstacle and is_saved:
        yield f"[checkpoint] asks for a run that can be resumed, but {obstacle}"
    has_save_before_end = scenario.stop.rounds or checkpoint.rounds or checkpoint.time
    if checkpoint.last and not has_save_before_end:
        yield (
            "checkpoint.last is true, and without stop.rounds no round is the last; give "
            "checkpoint.time or checkpoint.rounds, by which the run is saved before its end"
        )


def _check_messages(scenario: Sections) -> Iterator[str]:
    """Yield a message for each codec that cannot encode what the strategy sends."""
    strategy = scenario.strategy
    up = scenario.messages.up  # codec of the messages from devices
    down = scenario.messages.down
    up_text = f"messages.up is {up.kind!r}"
    if not strategy.traits.sends_models and scenario.messages != MessagesSpec():
        yield f"messages is given, and {strategy.called} sends nothing; leave it out"
    if strategy.secured_by is not None and up.kind != "plain":
        yield (
            f"{up_text}, and strategy.secure_aggregation masks numbers, which must be sent in "
            "full; allowed is 'plain'"
        )
    if strategy.traits.plain_down and down.kind != "plain":
        yield (
            f"messages.down is {down.kind!r}, and {strategy.called} sends no model down; "
            "allowed is 'plain'"
        )
    for key, aggregation in strategy.aggregations.items():
        # why the aggregation cannot combine what this codec sends
        obstacle = aggregation.why_not(up)
        if obstacle:
            yield f"{up_text} and strategy.{key} is {aggregation.kind!r}: the codec {obstacle}"
    if strategy.resizes and up.stores_residual:
        yield (
            f"{up_text} with error_feedback, and by strategy.redraw the next update has another "
            "size; allowed is error_feedback = false"
        )
    has_feedback_key = "error_feedback" in type(up).model_fields
    if has_feedback_key and "update" in strategy.traits.accumulated_contents:
        yield from _check_feedback(scenario)


def _check_feedback(scenario: Sections) -> Iterator[str]:
    """Yield a message if the codec's error feedback is set and has no effect.

    Error feedback adds to the next message what the codec has left out of the last message. Devices
    of the strategies concerned send accumulated updates, which include the omitted part anyway.
    """
    up = scenario.messages.up
    feedback = getattr(up, "error_feedback", None)
    if feedback != type(up).model_fields["error_feedback"].default:
        yield (
            f"messages.up has error_feedback = {str(feedback).lower()}, and with "
            f"{scenario.strategy.called} that changes nothing: what was left out is in its devices' next "
            "update; leave it out"
        )


def _check_objective(scenario: Sections) -> Iterator[str]:
    """Yield a message for each key that the objective makes impossible."""
    yield from _check_measured(scenario)
    objective = scenario.objective
    smoothing = getattr(scenario.training, "label_smoothing", 0.0)
    is_cross_entropy = objective.of_entropy and objective.loss is None
    if smoothing and not is_cross_entropy:
        yield (
            f"training.label_smoothing is {smoothing:g}, and the loss of objective.kind = "
            f"{objective.kind!r} is no cross-entropy here; allowed is 0"
        )
    learns_labels = objective.kind == "classification" and scenario.data.column is None
    malicious = scenario.malicious
    if malicious is not None and malicious.attack.flips_labels and not learns_labels:
        yield "malicious.attack turns labels around, and models learn other targets here"


def _check_measured(scenario: Sections) -> Iterator[str]:
    """Yield a message for each key that needs a metric which the objective does not measure."""
    objective = scenario.objective
    metrics = ["loss", *(metric.name for metric in scenario.figures)]
    kind = f"objective.kind = {objective.kind!r}"
    allowed = f"allowed are {', '.join(metrics)}"
    for name in scenario.stop.metrics:
        if name not in metrics:
            yield (
                f"stop.metrics has {name!r}; with objective.metrics = {objective.metrics} "
                f"{allowed}{nearest(name, metrics)}"
            )
    monitor = scenario.stop.monitor
    measures = [*metrics]
    if objective.has_accuracy:
        measures.append("accuracy")
    # names of measures in the table of rounds on devices that are tested and never train
    if scenario.population.tested_only is not None:
        measures += [name for name in COLUMNS if objective.has_accuracy or name == LOSS]
    if monitor is not None and monitor not in measures:
        yield (
            f"stop.monitor is {monitor!r}; with {kind} allowed are "
            f"{', '.join(measures)}{nearest(monitor, measures)}"
        )
    if objective.has_accuracy:
        return
    if scenario.stop.accuracy is not None:
        yield (
            f"stop.accuracy is {scenario.stop.accuracy:g}; with {kind} no answer is right or "
            f"wrong: allowed is stop.metrics, of which {allowed}"
        )
    strategy = scenario.strategy
    needs_accuracy = strategy.why_not.with_selection(strategy.selected_by).no_accuracy
    if needs_accuracy:  # text that names the key that needs accuracy; empty if no key does
        yield f"{needs_accuracy}, which goes by accuracies, and with {kind} there are none"


def _check_progress(scenario: Sections) -> Iterator[str]:
    """Yield a message for each useless key on the comparison of tests of the model.

    Only ``stop.patience`` and ``evaluation.keep_best`` compare tests. Without both, keys such as
    ``stop.min_delta`` have no effect. With ``learning = "off"`` there are no tests to compare.
    """
    stop = scenario.stop
    comparing_key = None
    if stop.patience is not None:
        comparing_key = f"stop.patience is {stop.patience}"
    elif scenario.evaluation.keep_best:
        comparing_key = "evaluation.keep_best is true"
    if comparing_key is None:
        for name in ("monitor", "min_delta"):
            if name in stop.model_fields_set and getattr(stop, name):
                yield (
                    f"stop.{name} says how tests are compared, and nothing compares them; give "
                    "stop.patience or evaluation.keep_best"
                )
    elif scenario.learning == "off":
        yield (
            f'{comparing_key}, and with learning = "off" no model is tested; allowed is '
            'learning = "on"'
        )


def _check_tested_only(scenario: Sections) -> Iterator[str]:
    """Yield a message if devices that are tested and never train cannot be tested.

    ``population.tested_only`` is the count of these devices. They need a model that other devices
    have trained.
    """
    population = scenario.population
    strategy = scenario.strategy
    if population.tested_only is None:
        return
    key = f"population.tested_only is {population.tested_only}"
    if strategy.traits.brings_learning:
        yield f"{key}, and {strategy.called} tests on data of its own; leave it out"
    elif scenario.learning == "off":
        yield f'{key}, and with learning = "off" no device is tested; leave it out'
    elif strategy.traits.only_own_models:
        yield (
            f"{key}, and with {strategy.called} each device has a model of its own alone; allowed "
            "are strategies with a model for all devices, or for groups"
        )
    elif strategy.traits.kept_by == "strategy" or scenario.model.has_kept_tensors:
        cause = "model.keep or model.send is given"
        if strategy.traits.kept_by == "strategy":
            cause = f"strategy.kind is {strategy.kind!r}"
        yield (
            f"{key}, and {cause}: tensors stay on the devices, and those of a device that never "
            "trains are the first random ones; allowed are models that are sent as a whole"
        )


def _check_training(scenario: Sections) -> Iterator[str]:
    """Yield a message for each key of ``[model]`` or ``[training]`` that cannot be used here."""
    strategy = scenario.strategy
    training = scenario.training
    learns = scenario.learning == "on"
    if learns and not scenario.model.learnable:
        yield (
            f"model.kind is {scenario.model.kind!r}, which has no weights to learn; allowed with "
            'learning = "off" only'
        )
    if scenario.model.has_kept_tensors and strategy.traits.kept_by != "scenario":
        reason = "sends them all"
        if strategy.traits.kept_by == "strategy":
            reason = "says so itself"
        yield (
            "model.keep or model.send says which tensors stay on the devices; not for "
            f"strategy.kind = {strategy.kind!r}, which {reason}; allowed are fedavg and fedprox"
        )
    # why the strategy needs steps along the gradient; empty if it does not
    reason_against_steps = strategy.why_not.with_selection(strategy.selected_by).other_steps
    if learns and reason_against_steps and not training.steps_along_gradient:
        yield (
            f"training.kind is {training.kind!r}, by which a step is not one along a gradient, "
            f"and not for {strategy.called}: {reason_against_steps}; allowed are 'sgd', and 'torch' with the "
            "optimiser 'SGD' and nothing that changes its steps"
        )
    if training.state == "kept" and training.has_no_state:
        yield (
            f"training.state is 'kept', and {getattr(training, 'optimizer', training.kind)!r} has "
            "no state with these training.args; allowed is 'fresh', or an optimiser with momentum "
            "or moments"
        )


def _check_sent_state(scenario: Sections) -> Iterator[str]:
    """Yield a message for each setting with which ``training.state = "sent"`` is impossible."""
    for problem in _obstacles_to_state(scenario):
        yield (
            f"training.state is 'sent' and {problem}; allowed are moments (as Adam's) and 'fedavg' "
            "or 'fedprox', 'weighted' or 'mean', without codecs, server optimiser, secure "
            "aggregation, attack and kept tensors"
        )


def _kind_of(aggregation: Aggregation | None) -> str | None:
    return None if aggregation is None else aggregation.kind


def _obstacles_to_state(scenario: Sections) -> Iterator[str]:
    """Yield each setting with which devices cannot send the state of their trainer, as a clause.

    An example is "malicious is given".
    """
    strategy = scenario.strategy
    training = scenario.training
    messages = scenario.messages
    aggregation = strategy.aggregated_by
    size_of_example = training.state_numbers({"": (2, 2)})  # state for one tensor of shape (2, 2)
    if size_of_example <= 0:
        name = getattr(training, "optimizer", training.kind)
        yield f"the trainer is {name!r}, of whose state no size is known"
    if not strategy.averages_updates:
        yield f"strategy.kind is {strategy.kind!r}"
    if strategy.optimised_by is not None:
        yield "strategy.server is given"
    if type(aggregation) not in (Weighted, Mean):
        yield f"strategy.aggregation is {_kind_of(aggregation)!r}"
    if strategy.secured_by is not None:
        yield "strategy.secure_aggregation is given"
    if not isinstance(messages.down, Plain):
        yield f"messages.down is {messages.down.kind!r}"
    if not isinstance(messages.up, Plain):
        yield f"messages.up is {messages.up.kind!r}"
    if scenario.malicious is not None:
        yield "malicious is given"
    if scenario.model.has_kept_tensors:
        yield "model.keep or model.send is given"
