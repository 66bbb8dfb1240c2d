"""One module for each family of types, all in the same form.

The head says what the wire holds and what Arrow gets; the decoders follow; `kernel(type_name, modifier)`
at the end makes the kernel of a type of that family. No module here knows a type's OID: that is the
table in `kernels`.
"""
