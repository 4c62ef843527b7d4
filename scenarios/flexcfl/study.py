"""The FlexCFL paper's tables and figures, measured beside published, and its claims with intervals.

    python scenarios/flexcfl/study.py                                  all that a processor can run, 3 seeds
    python scenarios/flexcfl/study.py --tables no-shift swap-all       Tables III and IV, MNIST with logistic regression
    python scenarios/flexcfl/study.py --size full                      the convolutional models; needs a GPU

Runs stay in --out and are not done again; the report goes to standard output as Markdown. Needs MNIST and Fashion-MNIST under
$FEDSIM_DATA, and EMNIST for the FEMNIST tables; a table whose data are not there is left out, and the report says so.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that the modules beside this script are found however called

from scenarios.flexcfl.tables import full, small
from scenarios.published.study import main
from scenarios.published.tables import Study

ABOUT = """\
The score is the paper's: each group's model is tested on the pooled test data of the devices that are in the group now, all
groups together; the best round counts, not before each device was asked once. A figure is within tolerance if its mean over
seeds is within 1.5 points of the published one, 2.5 for RAC, whose groups are a matter of luck. For ratios of bytes the
tolerance is 0.005, and 0.1 for IFCA-MIG, which sends as often as data happen to be swapped.
"""

STUDY = Study(
    title="FlexCFL: the paper's experiments",
    about=ABOUT,
    sizes={"small": small(), "full": full()},
    out=Path("runs/flexcfl"),
    command="python scenarios/flexcfl/study.py",
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
