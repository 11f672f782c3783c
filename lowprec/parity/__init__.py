"""Two runs of one model compared: the first operation whose bits differ, from recordings of both."""
