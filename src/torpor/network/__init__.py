"""What sandboxes reach outside themselves: slots, their firewalls, and the forwarder of their DNS questions."""
