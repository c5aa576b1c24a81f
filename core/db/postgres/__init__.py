"""Django's PostgreSQL backend, with two questions more: is the session set as it must be, and does the server take writes?"""
