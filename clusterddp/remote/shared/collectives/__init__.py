"""What workers do in their collective operations: the records that hosts send of them, and the judge of a hang."""
