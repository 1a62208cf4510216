"""What is on disk: the data directory, immutable images, baked templates, copy-on-write disks."""
