"""Around the core: studies, comparisons, forecasts, trackers. They read run folders and start runs."""
