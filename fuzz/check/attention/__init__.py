"""Subjects that compute the attention of a case by a function: what they take, and the memory they are held to."""
