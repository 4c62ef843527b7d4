"""What a half imports only at its end."""
