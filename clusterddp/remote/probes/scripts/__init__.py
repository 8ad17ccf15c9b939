"""Programs that the training interpreter runs to answer a probe; each stands alone."""
