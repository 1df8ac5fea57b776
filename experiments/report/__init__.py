"""From finished runs to one page: results → selection → tables and figures → page.

``page`` is the command ``report``, ``gallery`` the command ``figure``.
"""
