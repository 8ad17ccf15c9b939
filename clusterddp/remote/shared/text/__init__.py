"""Text helpers: numbers with nouns, shortening, redaction of secrets."""
