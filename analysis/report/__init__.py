"""``fedsim report``: runs and studies as one HTML page that needs nothing else, with a timeline to look at closely.

``gather`` finds the runs, ``sections`` and ``page`` put the page together out of ``markup``, ``words`` says the scenario in
plain English, ``tables`` and ``figures`` have what is read and seen; ``timeline`` and ``columns`` bring a run's steps into the
page, where the scripts in ``assets`` draw them, handled by ``controls``.
"""

from fedsim.analysis.report.write import write_report

__all__ = ["write_report"]
