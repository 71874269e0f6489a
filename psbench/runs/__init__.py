"""One run from begin to end, and what makes many of them: a fork, a search, a sweep."""
