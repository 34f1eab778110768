"""One training loop over any learner, and the crash-safe run folder that it writes."""
