"""How the runtime comes into a worker before user code, and which processes count as workers."""
