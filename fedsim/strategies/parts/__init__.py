"""What strategies are put together from: selection, aggregation, server optimiser, deadline."""
