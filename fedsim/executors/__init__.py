"""Executors run the real work. An executor decides how long work takes in real time, and nothing else."""
