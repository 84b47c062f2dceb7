"""Real processes whose surroundings fail: killed, without disk, clocks that jump, clients that vanish; and long use."""
