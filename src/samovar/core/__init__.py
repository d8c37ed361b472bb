"""The ground of all rooms: flat buffers and their layout, groups, deadlines, errors."""
