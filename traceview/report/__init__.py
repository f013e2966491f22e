"""The same findings in every form; a report computes nothing and sees the Analysis alone."""
