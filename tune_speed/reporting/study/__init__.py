"""A study as pages, figures and importances read it.

`reader.read_study` takes a picture from MLflow (`view.StudyView`), in parts whose trials may
be compared; `endings` says in a few kinds how trials ended.
"""
