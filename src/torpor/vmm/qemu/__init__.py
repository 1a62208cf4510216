"""QEMU's `microvm` machine, with KVM or without."""
