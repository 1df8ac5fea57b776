"""From finished runs to one page: ``results``, ``tables`` and ``figures``, ``page``."""
