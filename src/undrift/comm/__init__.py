"""What travels: codecs of uploads, packed bits, and the merges and routes of all-reduce."""
