"""`torpor bench`: what this machine reaches, measured through the SDK, beside what the bare work costs."""
