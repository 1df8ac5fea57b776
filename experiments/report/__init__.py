"""From finished runs to one page: results → tables and figures → page.

``page`` is the command ``report``, ``figures`` the command ``figure``.
"""
