"""Checks of what hooks of a user's code on devices return: steps, trainings, limits and contents.

``Client`` declares them by ``returns``, so that only hooks of users' classes are checked.
"""

from collections.abc import Iterable, Mapping
from typing import cast, get_args

from fedsim.common import step_names
from fedsim.common.arguments import (
    COUNT,
    TEXT,
    ArgumentRule,
    in_words,
    instance,
    is_mapping,
    is_number,
    is_text,
    is_whole,
    list_of,
    number,
    one_of,
    optional,
    plain,
    whole,
)
from fedsim.common.errors import show_value
from fedsim.common.training import (
    Contrast,
    CutBy,
    Limit,
    LocalEpochs,
    LocalSteps,
    ModelCut,
    Part,
    Proximal,
    Training,
)
from fedsim.federation.argument_rules import MODEL, PAIRS
from fedsim.federation.contents import SIZE_IN_WORDS, is_range, is_size
from fedsim.federation.previous_result import PreviousResult
from fedsim.learning.refs import Ref
from fedsim.world.steps import (
    Download,
    Evaluate,
    Pause,
    Payload,
    TaskStep,
    Train,
    Upload,
    Work,
)

STEPS_IN_WORDS = "a list of steps: Train, Evaluate, Work, Pause, or a TaskStep of your own"
RESULT_IN_WORDS = "a LocalResult of counts and models"
CONTENTS_IN_WORDS = "a dict of contents by name, or None"

_MOST_SPLITS = 62  # more would leave no sample in a part of the largest data set
_MOST_INTEGER = 2**63 - 1
_STEP_NAMES = frozenset(
    name for key, name in vars(step_names).items() if key.isupper() and isinstance(name, str)
)
_PAUSES = (step_names.SLEEP, step_names.START_UP)


def _with_numpy(rule: ArgumentRule) -> ArgumentRule:
    """Make a rule that allows numpy numbers too, for values that no record of the run contains."""
    fits = rule.fits
    return ArgumentRule(lambda owner, value: fits(owner, plain(value)), rule.allowed)


def _is_name_of_pause(value: object) -> bool:
    return is_text(value) and value != "" and (value in _PAUSES or value not in _STEP_NAMES)


def _is_part_of_sum(value: object) -> bool:
    if not isinstance(value, PAIRS) or len(value) != 2 or not is_number(value[1]):
        return False
    return isinstance(value[0], Ref) or (is_whole(value[0]) and value[0] >= 0)


def _fits_torch(value: object) -> bool:
    """Return whether a value is a number; torch takes integers only if they fit into 64 bits."""
    return is_number(value) and not (isinstance(value, int) and abs(value) > _MOST_INTEGER)


# infinity and NaN are allowed: trainings may diverge
_NUMBER = ArgumentRule(lambda _, value: _fits_torch(value), "a number, of at most 64 bits")
_TIME = _with_numpy(number(infinite=True))
_RESERVE = _with_numpy(number(least=0.0))
_AMOUNT = number(least=0.0, infinite=True)
_MODEL_OR_RESULT = instance((Ref, PreviousResult), "a model (Ref) or a PreviousResult")
_LIMIT = instance(Limit, "a Limit")
_PAYLOADS = list_of(instance(Payload, "a Payload"), "payloads")

_RULES: Mapping[type, Mapping[str, ArgumentRule]] = {
    LocalEpochs: {"count": COUNT},
    LocalSteps: {"count": whole(1), "only_batch": optional(COUNT)},
    Part: {"splits": whole(0, _MOST_SPLITS), "number": whole(1), "out_of": COUNT},
    Contrast: {"previous": MODEL, "weight": _NUMBER, "temperature": _NUMBER},
    ModelCut: {"by": one_of(*get_args(CutBy)), "size": _with_numpy(number(above=0.0))},
    Proximal: {"mu": _NUMBER, "anchor": optional(_MODEL_OR_RESULT)},
    PreviousResult: {
        "parts": list_of(
            ArgumentRule(
                lambda _, value: _is_part_of_sum(value),
                "a pair of a model (Ref) or the index of an earlier training, and a number",
            ),
            "pairs",
            least=1,
        )
    },
    Training: {
        "amount": instance(
            (LocalEpochs, LocalSteps), "a count of epochs, LocalEpochs or LocalSteps"
        ),
        "batch_size": optional(whole(1)),
        "part": optional(instance(Part, "a Part")),
        "proximal": instance(Proximal, "a Proximal"),
        "linear": optional(MODEL),
        "contrast": optional(instance(Contrast, "a Contrast")),
        "lr": optional(_NUMBER),
        "held": list_of(
            ArgumentRule(lambda _, value: is_range(plain(value)), "a range (begin, end)"), "ranges"
        ),
        "share": _with_numpy(number(least=0.0)),
        "cut": optional(instance(ModelCut, "a ModelCut")),
        "result": one_of("model", "last-gradient"),
        # fedsim sets it after the check, and then also keeps the earlier layers fixed
        "layers": ArgumentRule(
            lambda _, value: value is None,
            "None, as fedsim sets it where population.short_of_memory is 'fewer-layers'; 'held' "
            "keeps parameters of your choice fixed",
        ),
    },
    Limit: {
        "stop_at": optional(_TIME),
        "budget": optional(_TIME),
        "reserve_upload": _RESERVE,
        "at_least": _NUMBER,
        "reserve_s": _RESERVE,
    },
    Train: {"training": instance(Training, "a Training"), "limit": _LIMIT},
    Evaluate: {
        "models": list_of(MODEL, "models", least=1),
        "limit": _LIMIT,
        "samples": optional(whole(1)),
    },
    Work: {"samples": _AMOUNT, "flops": _AMOUNT, "seconds": _AMOUNT, "what": TEXT},
    Pause: {
        "name": ArgumentRule(
            lambda _, value: _is_name_of_pause(value),
            "'sleep', or a text that is no name of another step of fedsim",
        ),
        "seconds": _AMOUNT,
    },
    Download: {"payloads": _PAYLOADS},
    Upload: {"payloads": _PAYLOADS},
    Payload: {
        "purpose": TEXT,
        "bytes": ArgumentRule(lambda _, value: is_size(value), SIZE_IN_WORDS),
    },
}
"""Class (a step, training, limit or an object in their fields) -> name of a field -> its rule.

``Training.start`` is checked when the training has ended, as it may be a result of the same task.
"""

_COUNT = _with_numpy(COUNT)
_RESULT_RULES: Mapping[str, ArgumentRule] = {
    "samples": _COUNT,
    "epochs": _COUNT,
    "steps": _COUNT,
    "update": optional(MODEL),
    "start": optional(MODEL),
    "tested": optional(MODEL),
    "earlier": list_of(MODEL, "models"),
    "trained": optional(MODEL),
}
"""Field of ``LocalResult`` -> its rule."""


def find_wrong_field(value: object, *_: object, **__: object) -> str:
    """Describe the first wrong field of a step, training or limit; "" if no field is wrong.

    Args:
        value: the step, training or limit, or an object in one of its fields. The result is "" for
            a value of any other class.
    """
    rules = _RULES.get(type(value), {})
    mistake = _find_broken_rule(value, rules)
    if mistake:
        return mistake
    if type(value) is Training and type(value.start) is PreviousResult:
        return find_wrong_field(value.start)
    for name in rules:
        field = getattr(value, name)
        # a ``ModelCut`` is a tuple too
        for part in field if type(field) in (list, tuple) else (field,):
            mistake = find_wrong_field(part)
            if mistake:
                return mistake
    return ""


def _find_broken_rule(value: object, rules: Mapping[str, ArgumentRule]) -> str:
    """Describe the first field that breaks its rule, with its value and the rule, or return ""."""
    for name, rule in rules.items():
        field = getattr(value, name)
        if not rule.fits(None, field):
            kind = type(value).__name__
            return f"a {kind} whose {name} is {show_value(field)} and not {in_words(rule, None)}"
    return ""


def find_wrong_steps(steps: Iterable[object], *_: object, **__: object) -> str:
    """Describe the first wrong step in the result of ``Client.work``; "" if all steps are right.

    Args:
        steps: the result of ``Client.work``.
    """
    trainings = 0
    for step in steps:
        if not isinstance(step, TaskStep):
            return f"{show_value(step)} as a step"
        mistake = find_wrong_field(step)
        if mistake:
            return mistake
        if type(step) is Train:
            mistake = _find_missing_result(step.training, trainings)
            if mistake:
                return mistake
            trainings += 1
        name = getattr(step, "name", None)
        if not is_text(name) or not name:
            return f"a {type(step).__name__} whose name is {show_value(name)} and not a text"
    return ""


def _find_missing_result(training: Training, count: int) -> str:
    """Describe the first earlier training that a training refers to and that does not exist.

    Args:
        training: a training whose start or anchor may be the result of an earlier training of the
            same task.
        count: count of the earlier trainings of the task.

    Returns:
        The description; "" if all earlier trainings to which ``training`` refers exist.
    """
    for sum_of_results in (training.start, training.proximal.anchor):
        if type(sum_of_results) is not PreviousResult:
            continue
        for model, _ in sum_of_results.parts:
            if is_whole(model) and cast(int, model) >= count:
                return f"a PreviousResult whose parts have training {model}, of {count} before it"
    return ""


def find_wrong_result(result: object, *_: object, **__: object) -> str:
    """Describe the first wrong field of a ``LocalResult``; "" if no field is wrong."""
    return _find_broken_rule(result, _RESULT_RULES)


def find_wrong_contents(contents: object, *_: object, **__: object) -> str:
    """Describe the first name in a dict of contents that is no text; "" if all names are texts."""
    if contents is None or is_mapping(contents):
        return ""
    return f"a dict with the name {_find_wrong_name(contents)}"


def _find_wrong_name(contents: object) -> str:
    names = contents if isinstance(contents, Mapping) else ()
    return next((show_value(name) for name in names if not is_text(name)), "")
