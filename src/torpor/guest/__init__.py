"""The host's side of the guest agent: the channel, and what can be asked over it."""
