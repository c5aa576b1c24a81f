"""Charts and pages as plain text: SVG and HTML made in Python, with no script, no font and no picture from elsewhere.

`svg` elements and escaping; `scales` values to pixels, and ticks; `frame` axes, grid and marked values; `charts` the
charts themselves (pure: data in, SVG out); `page` the document around them; `machine` where something ran.
Used by the demo; nothing in here knows what is measured.
"""
