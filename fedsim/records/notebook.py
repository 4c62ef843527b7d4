"""Display of runs and scenarios in a notebook, as one line of text or a small table."""

import html
from collections.abc import Mapping
from typing import Any

from fedsim.common.harmless import clean, visible
from fedsim.common.round_words import round_word, stopped_in_words
from fedsim.common.units import show_bytes, show_seconds
from fedsim.records.ledger import total


def facts_of(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the main results of a run as short texts, for display in a notebook.

    Args:
        summary: the content of the run's ``summary.json``.

    Returns:
        Name of a result -> text. The names are ``scenario``, ``strategy``, ``seed``, ``status``,
        ``rounds`` (or ``versions``), ``accuracy``, the names of other metrics, ``simulated time``,
        and ``moved`` (bytes of all messages).
    """
    accuracy = summary["accuracy"]
    moved = summary["bytes"]
    moment = "at the end" if summary["status"] == "done" else "so far"
    accuracy_text = "none"
    if accuracy["best"] is not None:
        accuracy_text = f"{accuracy['final']:.4f} {moment}, {accuracy['best']:.4f} at best"
    best_values = {}
    for name, metric in summary.get("metrics", {}).items():
        best_values[name] = f"{metric['best']} at best"
    return {
        "scenario": str(summary["name"]),
        "strategy": strategy_of(summary),
        "seed": str(summary["seed"]),
        "status": f"{summary['status']} ({stopped_in_words(summary)})",
        f"{round_word(summary)}s": str(summary["rounds"]),
        "accuracy": accuracy_text,
        **best_values,
        "simulated time": show_seconds(summary["simulated_s"]),
        "moved": f"{show_bytes(total(moved))}, {show_bytes(moved['wasted'])} of it wasted",
    }


def strategy_of(summary: Mapping[str, object]) -> str:
    """Return the kind of a run's strategy, with its algorithm if the summary has one.

    An example is ``flower (FedAdam)``.
    """
    algorithm = summary.get("algorithm")
    return f"{summary.get('strategy')}" + (f" ({algorithm})" if algorithm else "")


def as_line(what: str, facts: Mapping[str, str]) -> str:
    """Return one line that describes an object: ``<fedsim run: scenario small, strategy fedavg>``.

    Args:
        what: noun for the object, such as ``run``.
        facts: properties of the object: name -> value as text.
    """
    return visible(
        f"<fedsim {what}: {', '.join(f'{key} {value}' for key, value in facts.items())}>"
    )


def as_html(title: str, facts: Mapping[str, str]) -> str:
    """Return a small HTML table that describes an object, with all text escaped.

    Args:
        title: caption of the table.
        facts: properties of the object: name -> value as text.
    """
    left = 'style="text-align:left"'
    cells = ((html.escape(key), html.escape(clean(value, 400))) for key, value in facts.items())
    rows = "".join(f"<tr><th {left}>{key}</th><td {left}>{value}</td></tr>" for key, value in cells)
    return f"<table><caption>{html.escape(clean(title, 400))}</caption>{rows}</table>"
