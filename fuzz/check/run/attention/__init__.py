"""Subjects that compute the attention of a case by a function: the calls they accept, and guarded memory."""
