"""To whom, and in which order: plans, their cost, and the executor that runs them."""
