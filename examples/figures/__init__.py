"""The figures of the paper, drawn again from numbers computed here."""
