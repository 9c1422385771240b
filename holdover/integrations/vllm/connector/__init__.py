"""The checkpoint tier as a KV connector: the scheduler's half decides, the worker's half moves bytes."""
