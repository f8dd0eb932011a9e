"""What may vary and how it is searched: study files, spaces, the policy, and Ray that runs it.

Ray and Optuna are imported in this package alone, and only by the modules that need them.
"""
