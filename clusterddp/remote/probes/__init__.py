"""Operations that report on a host: its facts, its health, whether it reaches other hosts."""
