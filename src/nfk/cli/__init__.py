"""The command `nfk`. One file a command; what they share has files of its own."""
