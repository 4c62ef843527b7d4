"""Local SGD: ``dense`` for stacks of dense layers, many devices at once in closed form; ``module`` for anything else."""
