"""Sources of samples: published data sets, and the user's own files."""
