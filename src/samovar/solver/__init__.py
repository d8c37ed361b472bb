"""Update rules and learning-rate policies on flat buffers."""
