"""Where real work runs. An executor decides how long work takes in real time, and nothing else."""
