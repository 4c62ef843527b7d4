"""Functions of clustered federated learning on arrays, without messages or simulated time."""
