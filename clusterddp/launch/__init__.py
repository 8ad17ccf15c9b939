"""Get from open hosts to started nodes: options, preflight, the plan, and the launcher that executes it."""
