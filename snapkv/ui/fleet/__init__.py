"""The page of a fleet: all members at one time, and the page of each member.

A *fleet site* has the site of each member, which it opens when a page asks for it. A URL without a
member is a page of the whole fleet: its *members*, their *differences* between two times, and the
*values* of one key in all of them. A member that does not answer is named, and the rest is shown.
"""
