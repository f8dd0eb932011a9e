"""What the policy is compared with."""
