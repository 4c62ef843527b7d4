"""CFL: clusters that are cut in two as long as their clients pull in different directions."""
