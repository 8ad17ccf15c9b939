"""The project's files: which of them are synced, what hosts lack, and how it is sent."""
