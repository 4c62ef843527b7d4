"""Quality of models and groupings, seen from outside: no simulated time, no bytes."""
