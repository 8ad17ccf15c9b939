"""What a host is asked: its facts, its health, whether it reaches others."""
