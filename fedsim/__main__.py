"""``python -m fedsim``: the command line."""

from fedsim.cli import main

main(prog_name="python -m fedsim")
