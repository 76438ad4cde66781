"""What holds for every test of this repository."""

from hypothesis import settings

# No deadline: the tests share the machine with the lab, and a slow second says nothing about the code.
settings.register_profile("sparkmesh", deadline=None)
settings.load_profile("sparkmesh")
