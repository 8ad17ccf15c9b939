"""What both sides say of a run's processes: stacks of its workers, signals to them, processes left over."""
