"""The LCFL paper's Table II and Figures 2 to 5, measured beside published, and its claims with intervals.

    python scenarios/lcfl/study.py                        a tenth of the devices, a perceptron; 3 seeds, ten minutes a run
    python scenarios/lcfl/study.py --tables table-2       Rotated MNIST: LCFL, IFCA, FedAvg, Local
    python scenarios/lcfl/study.py --size full --seeds 5  as published; needs a GPU

Runs stay in --out and are not done again; the report goes to standard output as Markdown. Needs MNIST under $FEDSIM_DATA,
EMNIST for Figures 2 and 4, CIFAR-10 for Fig. 5; a table whose data are not there is left out, and the report says so.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that the modules beside this script are found however called

from scenarios.lcfl.tables import full, small
from scenarios.published.study import main
from scenarios.published.tables import Study

ABOUT = """\
The score is the accuracy of each device's model (its cluster's; with Local its own) on its own test images, all devices pooled
(with Local their mean). Rounds of the warm-up count: LCFL's first five are FedAvg's. LCFL and IFCA are told the true number of
clusters, as in the published code of LCFL; the paper's text says 10.

In size `small` there are 120 devices instead of 1,200, each with ten times the images, a perceptron with 64 hidden units
instead of the convolutional network, 2 local epochs instead of 10 and a learning rate of 0.1 instead of 0.02: published figures
are only beside ours. In size `full` the tolerance is 1 point on Rotated MNIST, 1.5 on FEMNIST, and 3 iterations.
"""

STUDY = Study(
    title="LCFL: the paper's experiments",
    about=ABOUT,
    sizes={"small": small(), "full": full()},
    out=Path("runs/lcfl"),
    command="python scenarios/lcfl/study.py",
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
