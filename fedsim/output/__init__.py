"""What people see: harmless text, tables and progress on a terminal."""
