"""A local HTTP server that answers as Resend does, keeps account of what it accepted, and fails on demand.

It judges the rest of the project, so it shares no code with it: what both sides believe about the provider is written
down twice, on purpose. Start it with `python -m devtools.sandbox` (no Django is imported) or, from Python, with
`devtools.sandbox.process.Sandbox`. See docs/sandbox.md.
"""
