"""What came of the measurements, in sentences: what is alike is said once, what is told apart with its figures."""
