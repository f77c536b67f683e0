"""Rules of the agent's loop, each independent of the others."""
