"""The doctor's checks: pure judgements over what was gathered of the hosts."""
