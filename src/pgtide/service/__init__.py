"""What `pgtide run` keeps going, and what can be said about it from outside."""
