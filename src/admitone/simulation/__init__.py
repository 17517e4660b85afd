"""A deterministic simulator of the boundary: histories by seed on stores in memory, judged by the promises alone."""
