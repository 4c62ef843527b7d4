"""Trainers besides the built-in SGD: the optimisers of ``torch.optim``."""
