"""What is known of hosts, as values, and functions that draw conclusions from them (GPUs, networks), without I/O."""
