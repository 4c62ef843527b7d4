"""What a scenario is written in: specs and quantities, parts by name or by import path, how many samples and until when."""
