"""What the site shows beside the pages of docs/, made while mkdocs builds it."""
