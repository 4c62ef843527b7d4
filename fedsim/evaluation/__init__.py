"""How good models and groupings are, seen from outside: no simulated time, no bytes."""
