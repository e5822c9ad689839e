"""This package encodes what travels: uploads, signs as bits, and the messages of all-reduce."""
