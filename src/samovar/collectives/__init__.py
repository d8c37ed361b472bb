"""Collectives: to whom, and in which order. Plans, their cost, and the executors that run them."""
