"""From open hosts to started nodes: options, preflight, the plan, the launcher that carries it out."""
