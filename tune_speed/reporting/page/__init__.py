"""Pages of one file: a study, and leaderboards. They need no network and run nothing but their own.

`study_page` and `boards_page` turn frozen pictures of results into text. Every name in them may be
hostile: templates escape all of it, and the content security policy lets no script run but ours.
"""
