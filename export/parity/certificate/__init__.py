"""The certificate: a report drawn as a page with plots."""
