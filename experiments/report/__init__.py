"""From finished runs to tables, figures and one page: results → selection → tables, figures → page."""
