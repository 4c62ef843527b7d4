"""Sources of samples, partitions among devices, shards of devices, and shifts of data."""
