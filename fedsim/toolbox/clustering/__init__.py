"""The mathematics of clustered federated learning: numbers in, numbers out; no messages, no
models, no clock.
"""
