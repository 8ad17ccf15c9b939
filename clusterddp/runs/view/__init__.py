"""What is known of a run, judged and put into words: values in, values out."""
