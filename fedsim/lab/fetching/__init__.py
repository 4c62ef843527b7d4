"""Public data sets: a catalogue, downloads that resume, and archives that are not trusted."""
