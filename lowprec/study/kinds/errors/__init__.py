"""What codecs lose on kinds of data."""
