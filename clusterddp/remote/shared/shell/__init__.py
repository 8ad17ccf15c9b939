"""What commands and shells outside of runs are asked, and what they answer."""
