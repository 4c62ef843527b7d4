"""The tests under settings that stand for other processors: the libraries choose their machine
code as if they ran there.

    python -m tests.benchmarks.processors                           # all tests on each processor, and a line for each
    python -m tests.benchmarks.processors epyc -- tests/learning    # one of them, with arguments of pytest's

Each is a processor without AVX-512, and any that has AVX2 can stand for it. ``portable`` is that
of the hash table: code that every x86-64 processor has. Exit status 1 if a test fails anywhere.
"""

import argparse
import os
import subprocess
import sys


def _settings(
    blas: str, torch: str, onednn: str, numba: str, more: dict[str, str]
) -> dict[str, str]:
    kinds = {"OPENBLAS_CORETYPE": blas, "ATEN_CPU_CAPABILITY": torch, "ONEDNN_MAX_CPU_ISA": onednn}
    return (
        kinds
        | {"NUMBA_CPU_NAME": numba, "NUMBA_CPU_FEATURES": "", "NPY_DISABLE_CPU_FEATURES": _AVX512}
        | more
    )


_AVX512 = "X86_V4 AVX512_ICL AVX512_SPR"
_NO_AVX = {
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "NPY_DISABLE_CPU_FEATURES": f"X86_V3 {_AVX512}",
    # the logarithm of ``math`` has other last bits with FMA
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",
}
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}

PORTABLE = _settings(
    "Nehalem", "default", "SSE41", "x86-64-v2", _NO_AVX | _ONE_THREAD | {"MKL_CBWR": "COMPATIBLE"}
)
"""What gives the same bits on every x86-64 processor; they are read when numpy, torch and numba
are loaded.
"""
PROCESSORS = {
    "haswell": _settings("Haswell", "avx2", "AVX2", "haswell", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}),
    # MKL's code where it is not Intel's
    "epyc": _settings("Zen", "avx2", "AVX2", "znver2", {"MKL_CBWR": "COMPATIBLE"}),
    "nehalem": _settings("Nehalem", "default", "SSE41", "nehalem", _NO_AVX),
    "portable": PORTABLE,
}


def main() -> int:
    """Run the tests on each, and say what failed."""
    own, _, pytest = "\n".join(sys.argv[1:]).partition("\n--\n")
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "processor",
        nargs="*",
        choices=[[], *PROCESSORS],
        help="by default all, one after the other",
    )
    chosen = arguments.parse_args(own.split()).processor or PROCESSORS
    wrong = False
    for name in chosen:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "--dist",
            "worksteal",
            *pytest.split(),
        ]
        done = subprocess.run(
            command,
            env=os.environ | PROCESSORS[name],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines() or ["pytest did not run"]
        for line in [line for line in lines if line.startswith(("FAILED", "ERROR"))]:
            print(line)
        print(f"{name:<8} {lines[-1]}", flush=True)
        wrong |= done.returncode != 0
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
