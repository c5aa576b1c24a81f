"""Templates of any channel: Liquid, bounded in time and memory. Pure: no database, no provider."""
