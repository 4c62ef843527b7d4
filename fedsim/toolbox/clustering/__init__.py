"""The mathematics of clustered federated learning, without messages, models or a clock."""
