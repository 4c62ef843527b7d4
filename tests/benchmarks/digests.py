"""Shows that all records are those of before ``events_sha256`` was a hash over blocks.

    python -m tests.benchmarks.digests             # all strategies of the hash table
    python -m tests.benchmarks.digests fedavg      # these alone

Until then each record was hashed by itself. ``digests.json`` has the hashes of that time, of the
strategies and worlds of ``hashes.json``. Today's records are hashed in the old form, and compared
with them. Exit status 1 if a hash differs.
"""

import json
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

from fedsim.clock.simulation import Record
from fedsim.records.chain import RowChain
from fedsim.records.schema import event_row
from tests.benchmarks.hashes import WORLDS, fingerprint, require_portable
from tests.benchmarks.script import parser

TABLE = Path(__file__).with_suffix(".json")


def old_digest(kind: str, world: str) -> str:
    """The hash over single records of a strategy's run in a world."""
    rows = RowChain()

    def add(record: Record) -> None:
        rows.extend([event_row(record)])

    fingerprint(kind, world, add)
    return rows.hexdigest()


def main() -> int:
    """Run, and compare with the table."""
    arguments = parser(__doc__, workers=2)
    arguments.add_argument("kinds", nargs="*", metavar="STRATEGY", help="by default all")
    options = arguments.parse_args()
    require_portable("tests.benchmarks.digests")
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    pairs = list(product(options.kinds or table, WORLDS))
    differing = 0
    with ProcessPoolExecutor(options.workers) as pool:
        digests = pool.map(old_digest, *zip(*pairs, strict=True))
        for (kind, world), digest in zip(pairs, digests, strict=True):
            is_same = digest == table[kind][world]
            differing += not is_same
            print(f"{kind:<10} {world:<5} {'same' if is_same else 'DIFFERS'}", flush=True)
    print(f"{differing} runs differ" if differing else "all rows are as they were")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
