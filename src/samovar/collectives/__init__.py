"""To whom, and in which order: plans, what they cost, and the executors that run them."""
