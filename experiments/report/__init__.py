"""From finished runs to one page: results → selection → tables and figures → page.

``page`` holds the command ``report``, ``gallery`` the command ``figure``.
"""
