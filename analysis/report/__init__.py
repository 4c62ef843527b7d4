"""``fedsim report``: runs and studies as one self-contained HTML page with zoomable timelines.

``gather`` finds the runs; ``page`` and ``sections`` put the page together out of ``markup``; the
scripts in ``assets`` draw the steps that ``timeline`` brings into the page.
"""

from fedsim.analysis.report.page import write_report

__all__ = ["write_report"]
