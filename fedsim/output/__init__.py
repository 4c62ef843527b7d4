"""Output for people: sanitised text, tables and progress on a terminal."""
