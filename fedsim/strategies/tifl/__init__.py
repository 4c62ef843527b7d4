"""TiFL: a cohort is drawn from one tier of like clients, so that none waits for a much slower one (Chai et al., 2020)."""
