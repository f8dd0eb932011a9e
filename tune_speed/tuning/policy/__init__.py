"""The search policy: pure, without Ray and without a clock of its own."""
