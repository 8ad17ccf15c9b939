"""Text: numbers with their nouns, shortening, secrets struck out."""
