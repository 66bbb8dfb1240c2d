"""Servers and runtimes that pgtide brings along: a private Postgres, and a Java for Spark."""
