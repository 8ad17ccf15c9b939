"""What both sides say of Python environments that are built on hosts from lock files."""
